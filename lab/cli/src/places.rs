//! Where the lab's files are: contenders, scenarios, claims, and what is built of them.

use std::path::{Path, PathBuf};

use peregrine_lab_scenario::Scenario;

use crate::exit::Failure;

/// How scenarios are to be asked, other than their files say.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Asked {
    /// Over TLS.
    pub(crate) is_tls: bool,
    /// Over HTTP/2.
    pub(crate) is_http2: bool,
    /// With so many streams on a connection; none: as many as the scenario has requests under way.
    pub(crate) streams: Option<usize>,
}

/// The folders that commands work with.
#[derive(Debug, Clone)]
pub(crate) struct Places {
    /// The lab's own folder: with `contenders`, `scenarios` and `claims`.
    pub(crate) lab: PathBuf,
    /// Where contenders are built.
    pub(crate) target: PathBuf,
}

impl Places {
    /// The folders as the user wants them, or where they usually are: the lab beside this program's
    /// sources, or below the current folder.
    pub(crate) fn find(lab: Option<&Path>, target: Option<&Path>) -> Result<Places, Failure> {
        let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let candidates = match lab {
            Some(lab) => vec![lab.to_owned()],
            None => vec![PathBuf::from("lab"), PathBuf::from("."), beside],
        };
        let found = candidates.iter().find(|folder| folder.join("scenarios").is_dir());
        let lab = found.and_then(|folder| folder.canonicalize().ok()).ok_or_else(|| {
            let tried: Vec<String> =
                candidates.iter().map(|folder| folder.display().to_string()).collect();
            Failure::usage(format!(
                "the lab's folder, with contenders and scenarios, is not to be found (tried: {}); \
                 name it with --lab FOLDER",
                tried.join(", ")
            ))
        })?;
        let target = match target {
            Some(target) => target.to_owned(),
            None => match std::env::var_os("CARGO_TARGET_DIR") {
                Some(target) => PathBuf::from(target).join("contenders"),
                None => lab.join("../target/contenders"),
            },
        };
        let target = std::path::absolute(&target)
            .map_err(|error| Failure::file(target.display(), &error))?;
        Ok(Places { lab, target })
    }

    pub(crate) fn contenders(&self) -> PathBuf {
        self.lab.join("contenders")
    }

    pub(crate) fn scenarios(&self) -> PathBuf {
        self.lab.join("scenarios")
    }

    /// A claim file: a path as typed, below the lab, or a name in `claims`.
    pub(crate) fn claim(&self, typed: &Path) -> PathBuf {
        let beside = self.lab.join(typed);
        let named = self.lab.join("claims").join(typed).with_extension("toml");
        [typed.to_owned(), beside, named]
            .into_iter()
            .find(|path| path.is_file())
            .unwrap_or_else(|| typed.to_owned())
    }

    /// A scenario file: a path as typed, below the lab, or a name in `scenarios`.
    pub(crate) fn scenario(&self, typed: &str) -> String {
        let beside = self.lab.join(typed);
        if !Path::new(typed).is_file() && typed.ends_with(".toml") && beside.is_file() {
            return beside.display().to_string();
        }
        typed.to_owned()
    }

    /// The scenario of this name or path, over HTTP/2 and TLS if these are wanted.
    pub(crate) fn find_scenario(&self, typed: &str, asked: Asked) -> Result<Scenario, Failure> {
        let scenario = Scenario::find(&self.scenarios(), &self.scenario(typed));
        let mut scenario = scenario.map_err(Failure::usage)?;
        if asked.is_http2 {
            scenario = scenario.over_http2(asked.streams).map_err(Failure::usage)?;
        }
        if asked.is_tls { scenario.over_tls().map_err(Failure::usage) } else { Ok(scenario) }
    }
}
