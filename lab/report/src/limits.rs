//! What a result does not show, in sentences that follow from how it was made.

use peregrine_lab_model::RunFile;
use peregrine_lab_model::plan::{Design, Schedule};

use crate::standing;
use crate::subject::{self, Subject};

pub(crate) fn not_shown(files: &[RunFile]) -> Vec<String> {
    let is_of_one = standing::machines(files).len() < 2;
    let mut sentences: Vec<&str> = vec![
        if is_of_one {
            "How these programs compare on another machine, kernel, or version: everything below was \
             measured on the one described at the end."
        } else {
            "How these programs compare on another machine, kernel, or version than the one that a \
             run was measured on, which stands at the top where it is not that at the end."
        },
        "How an application of yours would do: most of its time is usually spent in its own code \
         and in its data base, not in the server.",
    ];
    let files: Vec<&RunFile> =
        files.iter().filter(|file| subject::of(file) == Subject::Load).collect();
    let any = |has: &dyn Fn(&RunFile) -> bool| files.iter().any(|file| has(file));
    if any(&|file| file.machine.network.contains("loopback")) {
        sentences.push(
            "Anything about a network: client and server share one machine, so there is no card, \
             no interrupt, no loss and no distance, and a part of the client's work in the kernel \
             is charged to the server.",
        );
    }
    if any(&|file| matches!(file.plan.schedule, Schedule::Closed { .. })) {
        sentences.push(
            "What users would wait, where the load is a closed loop: a slow server is asked less \
             often there, so its latencies look better than they are.",
        );
    }
    if any(&|file| file.plan.design == Design::Paired) {
        sentences.push(
            "The cost of a server that runs alone, where slices are paired: each slice begins with \
             cold caches. It is the same for all contenders, so ratios are right and absolute \
             figures are a little high.",
        );
    }
    if any(&|file| file.machine.server_cpus.len() == 1) {
        sentences.push("How the servers use more than one CPU: each had one.");
    }
    if !files.is_empty() && !any(&|file| file.plan.is_tls) {
        sentences.push("The cost of TLS: all of this is plain HTTP.");
    }
    if !files.is_empty() && !any(&|file| !file.memory.is_empty()) {
        sentences.push("Memory per connection: it was not read.");
    }
    sentences.into_iter().map(str::to_owned).collect()
}
