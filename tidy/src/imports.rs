//! Finds the modules of a crate that each module uses. Here a module is a file: modules within a
//! file are part of it, and code that is compiled only for tests is ignored.
//!
//! A re-export is followed to the module that defines the item: `crate::Body` uses `body`, not the
//! root. It is not a use by itself, so a root that re-exports the whole crate is not part of every
//! cycle. A glob import is a use of its module and is not followed.

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};

/// The modules that each module uses. The root is named `crate`, others like `body::error`.
pub(crate) type Graph = BTreeMap<String, BTreeSet<String>>;

/// The name of the root.
const ROOT: &str = "crate";

/// The maximum number of chained re-exports that are followed.
const HOPS_MAX: usize = 8;

#[derive(Default)]
struct Module {
    imports: Vec<Import>,
    /// Paths of two or more segments in the code.
    paths: Vec<Vec<String>>,
    /// First segments of paths, and names of one segment.
    names: BTreeSet<String>,
    /// Child modules that are compiled only for tests.
    tests: Vec<String>,
}

struct Import {
    /// `*` for all names of a module.
    name: String,
    path: Vec<String>,
    is_public: bool,
}

/// Reads the files of one crate, given by their paths relative to `src`.
pub(crate) fn graph<'a>(files: impl Iterator<Item = (&'a str, &'a str)>) -> Graph {
    let mut modules = BTreeMap::new();
    for (place, text) in files {
        let tokens = text.parse::<TokenStream>();
        let tokens = tokens.unwrap_or_else(|error| panic!("{place} is Rust: {error}"));
        let mut module = Module::default();
        module.read(tokens);
        modules.insert(name_of(place), module);
    }
    let tests: Vec<_> = modules
        .iter()
        .flat_map(|(name, module)| module.tests.iter().map(|test| child(name, test)))
        .collect();
    modules.retain(|name, _| {
        !tests.iter().any(|test| name == test || name.starts_with(&format!("{test}::")))
    });
    modules.keys().map(|name| (name.clone(), uses(&modules, name))).collect()
}

fn name_of(place: &str) -> String {
    let stem = place.trim_end_matches(".rs");
    match stem.strip_suffix("/mod").unwrap_or(stem) {
        "lib" | "main" => ROOT.to_owned(),
        path => path.replace('/', "::"),
    }
}

fn child(module: &str, name: &str) -> String {
    if module == ROOT { name.to_owned() } else { format!("{module}::{name}") }
}

impl Module {
    /// Collects the imports and paths in the code.
    fn read(&mut self, tokens: TokenStream) {
        let tokens: Vec<_> = tokens.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            at += match &tokens[at] {
                // `use<'a>` lists the lifetimes of a type.
                TokenTree::Ident(word) if word == "use" && !is_punct(tokens.get(at + 1), '<') => {
                    self.import(&tokens, at)
                }
                TokenTree::Ident(word) if word == "mod" => 2,
                TokenTree::Ident(_) => self.path(&tokens, at),
                TokenTree::Punct(punct) if punct.as_char() == '#' => self.attribute(&tokens[at..]),
                TokenTree::Group(group) => {
                    let mut inner = Self::default();
                    inner.read(group.stream());
                    let is_module = at >= 2 && tokens[at - 2].to_string() == "mod";
                    self.extend(inner, is_module);
                    1
                }
                _ => 1,
            };
        }
    }

    /// Adds the names from a part of the file. In a module within the file, `super` is the file.
    fn extend(&mut self, mut part: Self, is_module: bool) {
        let imports = part.imports.iter_mut().map(|import| &mut import.path);
        for path in imports.chain(&mut part.paths).filter(|_| is_module) {
            if path.first().is_some_and(|first| first == "super") {
                path.remove(0);
            }
        }
        self.imports.append(&mut part.imports);
        self.paths.append(&mut part.paths);
        self.names.append(&mut part.names);
        self.tests.append(&mut part.tests);
    }

    /// The length of an attribute, including the item after it if that is compiled only for tests.
    fn attribute(&mut self, tokens: &[TokenTree]) -> usize {
        let text: String = tokens.iter().take(2).map(ToString::to_string).collect();
        let text = text.replace(' ', "");
        if !text.starts_with("#[cfg(test)") && !text.starts_with("#[cfg(all(test") {
            return 1;
        }
        let is_end = |token: &TokenTree| is_punct(Some(token), ';') || is_braces(token);
        let length = tokens.iter().position(is_end).map_or(tokens.len(), |at| at + 1);
        let words: Vec<_> = tokens[..length].iter().filter_map(word).collect();
        let names = words.windows(2).filter(|pair| pair[0] == "mod").map(|pair| pair[1].clone());
        self.tests.extend(names);
        length
    }

    fn import(&mut self, tokens: &[TokenTree], at: usize) -> usize {
        let is_end = |token: &TokenTree| is_punct(Some(token), ';');
        let length = tokens[at..].iter().position(is_end).unwrap_or(tokens.len() - at);
        let mut before = tokens[..at].iter().rev();
        let visibility = before.find(|token| !matches!(token, TokenTree::Group(_)));
        let is_public = visibility.and_then(word).is_some_and(|word| word == "pub");
        self.import_tree(&tokens[at + 1..at + length], &[], is_public);
        length
    }

    fn import_tree(&mut self, tokens: &[TokenTree], before: &[String], is_public: bool) {
        for tree in tokens.split(|token| is_punct(Some(token), ',')) {
            let mut path = before.to_vec();
            let mut name = None;
            for token in tree {
                match token {
                    TokenTree::Group(group) => {
                        let tokens: Vec<_> = group.stream().into_iter().collect();
                        self.import_tree(&tokens, &path, is_public);
                        path.clear();
                    }
                    TokenTree::Punct(punct) if punct.as_char() == '*' => name = Some("*".into()),
                    token => path.extend(word(token)),
                }
            }
            if let Some(at) = path.iter().position(|word| word == "as") {
                name = path.last().cloned();
                path.truncate(at);
            }
            path.pop_if(|last| last == "self");
            if let Some(name) = name.or_else(|| path.last().cloned()) {
                self.imports.push(Import { name, path, is_public });
            }
        }
    }

    fn path(&mut self, tokens: &[TokenTree], at: usize) -> usize {
        let mut path: Vec<String> = word(&tokens[at]).into_iter().collect();
        let mut end = at + 1;
        while is_punct(tokens.get(end), ':') && is_punct(tokens.get(end + 1), ':') {
            let Some(name) = tokens.get(end + 2).and_then(word) else { break };
            path.push(name);
            end += 3;
        }
        let is_behind = |back: usize, letter| at >= back && is_punct(tokens.get(at - back), letter);
        // Field and method names, and names after `<T>::`, are not names of this module.
        let is_elsewhere = is_behind(1, '.') || (is_behind(1, ':') && is_behind(2, ':'));
        if !is_elsewhere {
            self.names.insert(path[0].clone());
            self.paths.extend(Some(path).filter(|path| path.len() > 1));
        }
        end - at
    }
}

fn word(token: &TokenTree) -> Option<String> {
    if let TokenTree::Ident(name) = token { Some(name.to_string()) } else { None }
}

fn is_punct(token: Option<&TokenTree>, letter: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == letter)
}

fn is_braces(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Group(group) if group.delimiter() == Delimiter::Brace)
}

/// The other modules that a module uses.
fn uses(modules: &BTreeMap<String, Module>, name: &str) -> BTreeSet<String> {
    let module = &modules[name];
    let is_used = |import: &&Import| {
        !import.is_public || import.name == "*" || module.names.contains(&import.name)
    };
    let imports = module.imports.iter().filter(is_used).map(|import| &import.path);
    let paths = imports.chain(&module.paths);
    let targets = paths.filter_map(|path| target(modules, name, path, HOPS_MAX));
    targets.filter(|target| target != name).collect()
}

/// The module that a path refers to; `None` if it is outside the crate.
fn target(
    modules: &BTreeMap<String, Module>,
    from: &str,
    path: &[String],
    hops: usize,
) -> Option<String> {
    let mut at = from.to_owned();
    for (number, segment) in path.iter().enumerate() {
        match segment.as_str() {
            "crate" => ROOT.clone_into(&mut at),
            "self" => {}
            "super" => at = at.rsplit_once("::").map_or(ROOT, |(parent, _)| parent).to_owned(),
            name if modules.contains_key(&child(&at, name)) => at = child(&at, name),
            name => {
                let imports = &modules.get(&at)?.imports;
                let find = |import: &&Import| import.name == name && import.path != path;
                if let Some(import) = imports.iter().find(find).filter(|_| hops > 0) {
                    let source = target(modules, &at, &import.path, hops - 1)?;
                    let rest = [&["self".to_owned()], &path[number + 1..]].concat();
                    return target(modules, &source, &rest, hops - 1);
                }
                return (number > 0).then_some(at);
            }
        }
    }
    Some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The modules that `a` uses, if it has this text.
    fn uses_of_a(text: &str) -> Vec<String> {
        let others = [
            (
                "lib.rs",
                "mod a; mod b; pub use b::{Old as New, c::*}; pub use std::io; struct Root;",
            ),
            ("b/mod.rs", "pub mod c; pub use self::c::Deep; pub struct Old; mod d;"),
            ("b/c.rs", "pub struct Deep; pub struct Star;"),
            ("b/d.rs", "pub fn f() {}"),
            ("a/e.rs", "pub struct E;"),
        ];
        let files = others.into_iter().chain([("a/mod.rs", text)]);
        graph(files).remove("a").expect("the module exists").into_iter().collect()
    }

    #[test]
    fn paths_lead_to_the_module_of_the_item() {
        let cases: [(&str, &[&str]); 16] = [
            ("use crate::b::Old;", &["b"]),
            ("use super::b::{self, c::{Deep, Star as S}};", &["b", "b::c"]),
            ("fn f() { crate::b::d::f(); }", &["b::d"]),
            ("macro!(x, [super::b::d::f()]);", &["b::d"]),
            ("use crate::b::Deep;", &["b::c"]),
            ("use crate::New;", &["b"]),
            ("use crate::Star;", &["crate"]),
            ("use crate::Root;", &["crate"]),
            ("use crate::io::Read; use std::fmt;", &[]),
            ("mod e; use e::E;", &["a::e"]),
            ("mod e; pub use e::{E, e};", &[]),
            ("mod e; pub use e::E; struct A(E);", &["a::e"]),
            ("use crate::b; fn f() { b::d::f() }", &["b", "b::d"]),
            ("mod inner { mod most { use super::*; use super::super::e::E; } }", &["a::e"]),
            ("fn f() -> impl Sized + use<'a> { crate::b::d::f(); }", &["b::d"]),
            ("mod inner { use super::A; use super::super::b::Old; } struct A;", &["b"]),
        ];
        for (text, expected) in cases {
            assert_eq!(uses_of_a(text), expected, "{text}");
        }
    }

    #[test]
    fn comments_texts_and_tests_use_nothing() {
        let text = "//! [`crate::b`]\n/* crate::b::d */ const A: &str = \"crate::b::c\";\n\
            #[cfg(test)] mod tests { use crate::b::Old; } #[cfg(test)] use crate::b;\n\
            struct X { b: u8 } fn f(x: X) { x.b }";
        assert_eq!(uses_of_a(text), [""; 0]);
        let tests = [
            ("lib.rs", "#[cfg(all(test, unix))]\nmod t; mod a;"),
            ("t.rs", "use crate::a::A;"),
            ("a.rs", ""),
        ];
        assert_eq!(graph(tests.into_iter()).into_keys().collect::<Vec<_>>(), ["a", "crate"]);
    }
}
