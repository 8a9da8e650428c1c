//! Fuzz targets: plain functions that panic if an invariant is violated.
//!
//! There are two ways to run a target. `cargo run -p peregrine-fuzz --release -- head --seconds 60
//! --seed 1` mutates the crates' case files with stable Rust alone. The binaries in `fuzz_targets`
//! are for libFuzzer (feature `libfuzzer`); built without it, they replay the files named on their
//! command line.
//!
//! To add a target, write its function in a file and add its line to [`TARGETS`].

#![forbid(unsafe_code)]

mod connection;
pub mod corpus;
mod h2;
#[path = "../../crates/proto/tests/it/h2/play.rs"]
mod h2_play;
#[path = "../../crates/proto/tests/it/ws/inflater.rs"]
mod inflater;
pub mod mutate;
#[path = "../../crates/proto/tests/it/ws/notation.rs"]
mod notation;
#[path = "../../crates/proto/tests/it/h1/play.rs"]
mod play;
mod proxy;
#[path = "../../crates/proto/tests/it/proxy/wire.rs"]
mod proxy_wire;
#[path = "../../crates/proto/tests/it/h1/reader.rs"]
mod reader;
mod response;
#[path = "../../crates/proto/tests/it/script.rs"]
mod script;
mod trace;
#[path = "../../crates/proto/tests/it/h2/wire.rs"]
mod wire;
mod ws;
#[path = "../../crates/proto/tests/it/ws/play.rs"]
mod ws_play;

pub use connection::{body, head};
pub use h2::{h2, hpack};
pub use peregrine_multipart::fuzz::fuzz_one as multipart;
pub use peregrine_router::fuzz::fuzz_one as router;
pub use peregrine_tls::{fuzz_certificate as certificate, fuzz_one as tls};
pub use proxy::proxy;
pub use response::response;
pub use trace::trace;
pub use ws::{deflate, ws};

/// A target by name, with the function that returns its initial inputs.
pub struct Target {
    /// Its name on the command line.
    pub name: &'static str,
    /// Panics if the input reveals a bug.
    pub run: fn(&[u8]),
    /// The initial inputs for mutation.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// Every target.
pub const TARGETS: &[Target] = &[
    Target { name: "head", run: head, seeds: corpus::requests },
    Target { name: "body", run: body, seeds: corpus::connections },
    Target { name: "response", run: response, seeds: corpus::responses },
    Target { name: "h2", run: h2, seeds: corpus::frames },
    Target { name: "hpack", run: hpack, seeds: corpus::blocks },
    Target { name: "ws", run: ws, seeds: corpus::messages },
    Target { name: "deflate", run: deflate, seeds: corpus::compressed },
    Target { name: "proxy", run: proxy, seeds: proxy::seeds },
    Target { name: "router", run: router, seeds: corpus::routes },
    Target { name: "tls", run: tls, seeds: corpus::records },
    Target { name: "certificate", run: certificate, seeds: corpus::certificates },
    Target { name: "multipart", run: multipart, seeds: peregrine_multipart::fuzz::seeds },
    Target { name: "trace", run: trace, seeds: trace::seeds },
];

/// The entry point of a target's binary: libFuzzer's, or one that replays files.
#[macro_export]
macro_rules! target {
    ($name:ident) => {
        #[cfg(feature = "libfuzzer")]
        libfuzzer_sys::fuzz_target!(|data: &[u8]| peregrine_fuzz::$name(data));

        #[cfg(not(feature = "libfuzzer"))]
        fn main() -> std::io::Result<()> {
            for path in std::env::args().skip(1) {
                $crate::$name(&std::fs::read(path)?);
            }
            Ok(())
        }
    };
}

#[cfg(test)]
mod tests {
    use super::{TARGETS, mutate::Mutator};

    #[test]
    fn every_target_holds_on_its_seeds_and_some_mutations() {
        for target in TARGETS {
            let seeds = (target.seeds)();
            assert!(seeds.len() > 10, "{} has too few seeds", target.name);
            for seed in &seeds {
                (target.run)(seed);
            }
            let mut mutator = Mutator::new(seeds, 1);
            for _ in 0..2000 {
                (target.run)(mutator.next());
            }
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_inputs() {
        let inputs = |seed| {
            let mut mutator = Mutator::new((TARGETS[0].seeds)(), seed);
            (0..50).map(|_| mutator.next().to_vec()).collect::<Vec<_>>()
        };
        assert_eq!(inputs(7), inputs(7));
        assert_ne!(inputs(7), inputs(8));
    }
}
