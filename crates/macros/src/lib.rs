//! Attribute macros that register handlers as routes: `#[get("/users/{id}")]` and similar, for
//! [`App::register`](https://docs.rs/peregrine/latest/peregrine/struct.App.html).
//!
//! A function with such an attribute becomes a function that takes a scope, adds the route to it,
//! and returns it. The handler itself can then no longer be called; to route a function that is
//! also called directly, omit the attribute and pass the function to `App::get`.
//!
//! In addition to the pattern, an attribute accepts `name = "..."`, a name for URLs
//! (`HandlerExt::named`), and any number of `guard = ...`, which restrict the requests that the
//! route handles (`HandlerExt::guard`). With the feature `openapi` it accepts `described`, or
//! `describe = |it| ...` for more detail; the doc comment becomes part of the description.
#![forbid(unsafe_code)]

use proc_macro::TokenStream;
use proc_macro2::TokenStream as Tokens;
use quote::{format_ident, quote};
use syn::parse::{Parse, ParseStream};
use syn::{
    Attribute, Expr, ExprLit, Ident, ItemFn, Lit, LitStr, Meta, MetaNameValue, Token, Visibility,
    parse_macro_input,
};

/// The arguments of an attribute.
struct AttributeArgs {
    /// The method; only for the attribute `on`.
    method: Option<Expr>,
    pattern: LitStr,
    name: Option<LitStr>,
    guards: Vec<Expr>,
    description: OpenApiDescription,
}

/// The OpenAPI description of the route.
enum OpenApiDescription {
    None,
    FromTypes,
    Custom(Box<Expr>),
}

impl AttributeArgs {
    fn parse(input: ParseStream<'_>, has_method: bool) -> syn::Result<Self> {
        let method = if has_method {
            let method = input.parse()?;
            input.parse::<Token![,]>()?;
            Some(method)
        } else {
            None
        };
        let pattern = input.parse().map_err(|error| {
            syn::Error::new(error.span(), "expected a pattern, such as \"/users/{id}\"")
        })?;
        let mut parsed = Self {
            method,
            pattern,
            name: None,
            guards: Vec::new(),
            description: OpenApiDescription::None,
        };
        while !input.is_empty() {
            input.parse::<Token![,]>()?;
            if input.is_empty() {
                break;
            }
            let key: Ident = input.parse()?;
            if key == "described" && matches!(parsed.description, OpenApiDescription::None) {
                parsed.description = OpenApiDescription::FromTypes;
                continue;
            }
            input.parse::<Token![=]>()?;
            match key.to_string().as_str() {
                "name" if parsed.name.is_none() => parsed.name = Some(input.parse()?),
                "name" => return Err(syn::Error::new(key.span(), "a route takes one name")),
                "guard" => parsed.guards.push(input.parse()?),
                "describe" if matches!(parsed.description, OpenApiDescription::None) => {
                    parsed.description = OpenApiDescription::Custom(input.parse()?);
                }
                "describe" | "described" => {
                    return Err(syn::Error::new(key.span(), "a route takes one description"));
                }
                _ => {
                    let text = "expected `name = ..`, `guard = ..`, `described` or `describe = ..`";
                    return Err(syn::Error::new(key.span(), text));
                }
            }
        }
        Ok(parsed)
    }
}

struct PathArgs(AttributeArgs);

impl Parse for PathArgs {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        AttributeArgs::parse(input, false).map(Self)
    }
}

struct MethodArgs(AttributeArgs);

impl Parse for MethodArgs {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        AttributeArgs::parse(input, true).map(Self)
    }
}

/// The code that replaces `function`. `scope_method` is the method of `Scope` that adds the route.
fn expand(scope_method: &str, arguments: &AttributeArgs, mut function: ItemFn) -> Tokens {
    if let Some(receiver) = function.sig.receiver() {
        let text = "a handler must be a function, not a method: take state as `State<T>`";
        return syn::Error::new_spanned(receiver, text).into_compile_error();
    }
    if !function.sig.generics.params.is_empty() {
        let text =
            "a handler with an attribute cannot have generic parameters: they would be ambiguous";
        return syn::Error::new_spanned(&function.sig.generics, text).into_compile_error();
    }
    let visibility = std::mem::replace(&mut function.vis, Visibility::Inherited);
    let (docs, other_attributes): (Vec<_>, Vec<_>) =
        function.attrs.drain(..).partition(|attribute| attribute.path().is_ident("doc"));
    function.attrs = other_attributes;
    let name = function.sig.ident.clone();
    let scope_method = format_ident!("{scope_method}");
    let AttributeArgs { method, pattern, name: route_name, guards, description } = arguments;
    let method = method.iter();
    let mut handler = quote!(#name);
    match description {
        OpenApiDescription::None => {}
        OpenApiDescription::FromTypes => {
            handler = quote!(::peregrine::openapi::DescribeExt::described(#handler));
        }
        OpenApiDescription::Custom(edit) => {
            handler = quote!(::peregrine::openapi::DescribeExt::describe(#handler, #edit));
        }
    }
    let comment = doc_text(&docs);
    if !comment.is_empty() {
        handler = quote! {
            ::peregrine::web::HandlerExt::with_metadata(#handler, ::peregrine::web::route::DocComment(#comment))
        };
    }
    for guard in guards {
        handler = quote!(::peregrine::web::HandlerExt::guard(#handler, #guard));
    }
    if let Some(route_name) = route_name {
        handler = quote!(::peregrine::web::HandlerExt::named(#handler, #route_name));
    }
    quote! {
        #(#docs)*
        // A function rather than a unit struct, because a local variable cannot have the name of a
        // unit struct.
        #[allow(clippy::must_use_candidate, clippy::double_must_use)]
        #visibility fn #name(__peregrine_scope: ::peregrine::web::Scope) -> ::peregrine::web::Scope {
            // Inside this function, the name refers to the handler. The parameter has an unusual
            // name, so that a handler can be called `scope`.
            #function
            __peregrine_scope.#scope_method(#(#method,)* #pattern, #handler)
        }
    }
}

/// The text of a doc comment.
fn doc_text(docs: &[Attribute]) -> String {
    let lines = docs.iter().filter_map(|doc| match &doc.meta {
        Meta::NameValue(MetaNameValue {
            value: Expr::Lit(ExprLit { lit: Lit::Str(text), .. }),
            ..
        }) => Some(text.value()),
        _ => None,
    });
    let lines: Vec<_> = lines
        .map(|line| {
            line.strip_prefix(' ').map_or(line.clone(), str::to_owned).trim_end().to_owned()
        })
        .collect();
    lines.join("\n").trim().to_owned()
}

macro_rules! method_attributes {
    ($($name:ident $text:literal;)*) => {
        $(
            #[doc = concat!("A handler for ", $text, ": `#[", stringify!($name), "(\"/users/{id}\")]`. See the [crate].")]
            #[proc_macro_attribute]
            pub fn $name(attribute: TokenStream, item: TokenStream) -> TokenStream {
                let PathArgs(arguments) = parse_macro_input!(attribute);
                expand(stringify!($name), &arguments, parse_macro_input!(item)).into()
            }
        )*
    };
}

method_attributes! {
    get "GET, and for HEAD unless it has a separate handler";
    post "POST";
    put "PUT";
    delete "DELETE";
    patch "PATCH";
    head "HEAD";
    options "OPTIONS";
    query "QUERY";
    any "every method without a separate handler";
}

/// A handler for any method, including extension methods: `#[on(Method::PUT, "/users/{id}")]`. See
/// the [crate].
#[proc_macro_attribute]
pub fn on(attribute: TokenStream, item: TokenStream) -> TokenStream {
    let MethodArgs(arguments) = parse_macro_input!(attribute);
    expand("on", &arguments, parse_macro_input!(item)).into()
}
