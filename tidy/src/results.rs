//! What lies in `docs/results`, and who may link there.

use crate::source::place;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// The folder with what was measured.
pub(crate) const FOLDER: &str = "docs/results";

/// What a folder of results may hold. HTML comes from `lab report`.
const KEPT: [&str; 4] = ["README.md", "report.md", "runs.json.xz", "forest.svg"];

/// What all of it may weigh.
const BYTES_MAX: u64 = 2_000_000;

/// What a report says that is no comparison.
const RED: &str = "Must not be published as a comparison";

/// The results are light, and no page outside of them leads to a red report.
pub(crate) fn check(root: &Path) -> Vec<String> {
    let mut complaints = weigh(root);
    for page in pages(root) {
        let text = fs::read_to_string(&page).unwrap_or_default();
        let folder = page.parent().unwrap_or(root);
        for target in links(&text) {
            if let Some(report) = red_report(root, &folder.join(target)) {
                let (page, report) = (place(root, &page), place(root, &report));
                complaints.push(format!(
                    "{page}: links to {target}, and {report} says “{RED}”: link to another run, or \
                     take the link and its figures out"
                ));
            }
        }
    }
    complaints
}

fn weigh(root: &Path) -> Vec<String> {
    let mut files = Vec::new();
    walk(&root.join(FOLDER), &mut files);
    let mut complaints = Vec::new();
    for path in &files {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !KEPT.contains(&name.as_str()) {
            complaints.push(format!(
                "{}: only {} are kept; `lab pack` makes them",
                place(root, path),
                KEPT.join(", ")
            ));
        }
    }
    let bytes: u64 = files.iter().filter_map(|path| Some(path.metadata().ok()?.len())).sum();
    if bytes > BYTES_MAX {
        complaints.push(format!(
            "{FOLDER}: {bytes} bytes, and at most {BYTES_MAX}; drop what newer runs replace"
        ));
    }
    complaints
}

/// Every page of the project outside of the results.
fn pages(root: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    walk(root, &mut files);
    let results = root.join(FOLDER);
    files.retain(|path| {
        path.extension().is_some_and(|extension| extension == "md") && !path.starts_with(&results)
    });
    files.sort();
    files
}

fn walk(folder: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            walk(&path, files);
        } else if path.is_file() {
            files.push(path);
        }
    }
}

/// The targets of links and pictures, without what stands behind `#`.
fn links(text: &str) -> Vec<&str> {
    let inline = text.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
    let defined = text.lines().filter_map(|line| {
        line.strip_prefix('[').and_then(|line| Some(line.split_once("]: ")?.1.trim()))
    });
    let targets = inline.chain(defined).filter(|target| !target.contains("://"));
    targets.filter_map(|target| target.split('#').next()).filter(|path| !path.is_empty()).collect()
}

/// The red report of the folder that a link leads into, if it does.
fn red_report(root: &Path, target: &Path) -> Option<PathBuf> {
    let target = without_dots(target);
    if !target.starts_with(root.join(FOLDER)) {
        return None;
    }
    let folder = if target.is_dir() { target.as_path() } else { target.parent()? };
    is_red(folder).then(|| folder.join("report.md"))
}

/// Whether the report of a folder of results must not be published.
pub(crate) fn is_red(folder: &Path) -> bool {
    fs::read_to_string(folder.join("report.md")).is_ok_and(|report| report.contains(RED))
}

/// The path without `.` and `..`.
pub(crate) fn without_dots(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => _ = plain.pop(),
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_and_pictures_are_found_without_what_is_elsewhere() {
        let text = "[a](b/c.md#d) ![e](f.svg \"g\") [h](https://i) [j](#k)\n[l]: m/n.md\n";
        assert_eq!(links(text), ["b/c.md", "f.svg", "m/n.md"]);
    }

    #[test]
    fn a_link_into_the_folder_of_a_red_report_is_refused() {
        let root = std::env::temp_dir().join(format!("tidy-results-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("docs/results/bad/report.md", &format!("**red: {RED}**"));
        write("docs/results/bad/forest.svg", "");
        write("docs/results/good/report.md", "**amber**");
        write("docs/results/README.md", "[bad](bad/report.md)");
        write("docs/page.md", "![x](results/bad/forest.svg) [y](results/good/report.md)");
        write("README.md", "[z](docs/results/README.md) [w](docs/results/bad)");
        let complaints = check(&root);
        assert_eq!(complaints.len(), 2, "{complaints:?}");
        assert!(complaints[0].starts_with("README.md: links to docs/results/bad, and"));
        assert!(complaints[1].starts_with("docs/page.md: links to results/bad/forest.svg, and"));
        write("docs/results/good/report.html", "");
        assert!(check(&root)[0].starts_with("docs/results/good/report.html: only README.md"));
        fs::remove_dir_all(&root).unwrap();
    }
}
