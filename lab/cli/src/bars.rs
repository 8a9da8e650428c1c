//! Progress on a terminal: a bar with the remaining time. Elsewhere only sentences are told, each
//! on its own line of standard error.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use peregrine_lab_run::progress::Progress;

/// Shows a run on standard error.
pub(crate) struct Bars {
    bar: Option<ProgressBar>,
}

impl Bars {
    pub(crate) fn new() -> Bars {
        Bars { bar: None }
    }
}

impl Progress for Bars {
    fn begin(&mut self, what: &str, steps: u64, about: Duration) {
        let bar = ProgressBar::new(steps);
        let form = "{msg} [{bar:30}] {pos}/{len} {elapsed_precise}, {eta} left";
        bar.set_style(ProgressStyle::with_template(form).expect("the template is well-formed"));
        bar.set_message(format!("{what} (about {} s)", about.as_secs()));
        bar.enable_steady_tick(Duration::from_millis(500));
        self.bar = Some(bar);
    }

    fn step(&mut self) {
        if let Some(bar) = &self.bar {
            bar.inc(1);
        }
    }

    fn end(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }

    fn say(&mut self, sentence: &str) {
        match &self.bar {
            Some(bar) if !bar.is_hidden() => bar.println(sentence),
            _ => eprintln!("{sentence}"),
        }
    }
}
