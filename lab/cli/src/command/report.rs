//! `lab report`: HTML, Markdown, JSON and one picture from run files.

use std::fs;
use std::path::{Path, PathBuf};

use peregrine_lab_model::RunFile;
use peregrine_lab_report::Report;

use crate::exit::{Exit, Failure};
use crate::options;

/// The names of what is written, which are no run files.
const OUTPUTS: [&str; 4] = ["report.html", "report.md", "report.json", "forest.svg"];

pub(super) fn report(wanted: &options::Report) -> Result<Exit, Failure> {
    let mut files = Vec::new();
    for path in &wanted.runs {
        files.extend(read(path)?);
    }
    let folder = match (&wanted.out, wanted.runs.first()) {
        (Some(out), _) => out.clone(),
        (None, Some(first)) if first.is_dir() => first.clone(),
        (None, Some(first)) => first.parent().map_or_else(PathBuf::new, Path::to_owned),
        (None, None) => PathBuf::new(),
    };
    let is_any = wanted.html || wanted.md || wanted.json || wanted.svg;
    let wanted = [wanted.html || !is_any, wanted.md, wanted.json, wanted.svg];
    for path in write(&files, &folder, wanted)? {
        println!("{}", path.display());
    }
    Ok(Exit::Right)
}

/// The run files at a path: itself, or all in a folder in the order of their names.
fn read(path: &Path) -> Result<Vec<RunFile>, Failure> {
    let paths = if path.is_dir() { in_folder(path)? } else { vec![path.to_owned()] };
    if paths.is_empty() {
        return Err(Failure::usage(format!(
            "{}: there are no run files; `lab run` writes them",
            path.display()
        )));
    }
    let read_one = |path: &PathBuf| {
        let text =
            fs::read_to_string(path).map_err(|error| Failure::file(path.display(), &error))?;
        RunFile::read(&text).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))
    };
    let mut files: Vec<RunFile> = paths.iter().map(read_one).collect::<Result<_, _>>()?;
    // Levels of one scenario in the order of their connections, and rates in theirs.
    let key = |file: &RunFile| {
        let rate = file.plan.schedule.rate_per_s().unwrap_or(0.0);
        (file.plan.scenario.clone(), file.plan.connections, rate as u64)
    };
    files.sort_by_key(key);
    Ok(files)
}

fn in_folder(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let failed = |error: std::io::Error| Failure::file(folder.display(), &error);
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_run = name.ends_with(".json") && !name.starts_with('.');
        if is_run && !OUTPUTS.contains(&name.as_str()) {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// The forms that a measuring command writes.
pub(super) const USUAL: [bool; 4] = [true, true, true, false];

/// Writes the wanted forms (HTML, Markdown, JSON, SVG) into the folder and returns their paths.
pub(super) fn write(
    files: &[RunFile],
    folder: &Path,
    wanted: [bool; 4],
) -> Result<Vec<PathBuf>, Failure> {
    let report = Report::new(files);
    let forms: [&dyn Fn() -> String; 4] =
        [&|| report.html(), &|| report.markdown(), &|| report.json(), &|| report.forest_svg()];
    let mut paths = Vec::new();
    for ((name, form), _) in
        OUTPUTS.iter().zip(forms).zip(wanted).filter(|(_, is_wanted)| *is_wanted)
    {
        let path = folder.join(name);
        fs::write(&path, form()).map_err(|error| Failure::file(path.display(), &error))?;
        paths.push(path);
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_read_without_the_reports_in_it() {
        let folder = tempfile::tempdir().unwrap();
        for (name, connections) in [("b", 64), ("a", 1500)] {
            let mut file = RunFile::new(name);
            file.plan.scenario = "json".to_owned();
            file.plan.connections = connections;
            let path = folder.path().join(format!("{name}.json"));
            fs::write(path, serde_json::to_vec(&file).unwrap()).unwrap();
        }
        fs::write(folder.path().join("report.json"), "{}").unwrap();
        let files = read(folder.path()).unwrap();
        let names: Vec<&str> = files.iter().map(|file| file.run.as_str()).collect();
        assert_eq!(names, ["b", "a"]);
        let written = write(&files, folder.path(), [true; 4]).unwrap();
        assert_eq!(written.len(), 4);
        assert!(fs::read_to_string(&written[0]).unwrap().starts_with("<!doctype html>"));
    }

    #[test]
    fn a_folder_without_run_files_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let failure = read(folder.path()).unwrap_err();
        assert_eq!(failure.exit, Exit::Usage);
        assert!(failure.text.contains("lab run"), "{}", failure.text);
    }
}
