//! The form of run files: what is read, what is refused, and in which words.

use std::io::Read as _;

use peregrine_lab_model::block::Block;
use peregrine_lab_model::check::{Check, Outcome};
use peregrine_lab_model::contender::Contender;
use peregrine_lab_model::histogram::Histogram;
use peregrine_lab_model::plan::{Design, Schedule};
use peregrine_lab_model::verdict::{Decision, Measure, Ratio, Verdict};
use peregrine_lab_model::{Calibration, ReadError, RunFile, SCHEMA, pack};

fn full() -> RunFile {
    let mut file = RunFile::new("get-json-64");
    file.plan.schedule = Schedule::Poisson { rate_per_s: 20_000.0 };
    file.plan.design = Design::Separate;
    file.machine.load_before = Some([0.1, 0.2, 0.3]);
    file.contenders.push(Contender { name: "one".into(), ..Contender::default() });
    file.blocks.push(Block {
        contender: "one".into(),
        requests: 1_000,
        server_cpu_ns: 5_000_000,
        wall_ns: 10_000_000,
        latency: Some(Histogram::new([(1_000, 999), (9_000, 1)])),
        errors: [("timeout".into(), 0)].into(),
        ..Block::default()
    });
    file.verdicts.push(Verdict {
        contender: "one".into(),
        reference: "two".into(),
        measure: Measure::ServerCpu,
        ratio: Ratio { estimate: 0.8, low: 0.7, high: 0.9 },
        decision: Decision::Faster,
        blocks: 40,
        p_value: Some(0.001),
        more_blocks: None,
        note: String::new(),
    });
    file.checks.push(Check {
        name: "Date moves".into(),
        contender: None,
        outcome: Outcome::Passed,
        detail: String::new(),
    });
    file
}

#[test]
fn what_is_written_is_read_back() {
    let file = full();
    assert_eq!(RunFile::read(&file.write()).unwrap(), file);
}

#[test]
fn a_calibration_without_a_reply_is_read_back() {
    let mut file = full();
    let nothing = Calibration { requests_per_s: 0.0, client_cpu_ns_per_request: f64::NAN };
    file.calibration = Some(nothing);
    let read = RunFile::read(&file.write()).unwrap().calibration.unwrap();
    assert_eq!(read.requests_per_s.to_bits(), 0.0_f64.to_bits());
    assert!(read.client_cpu_ns_per_request.is_nan());
}

#[test]
fn every_digit_of_a_figure_survives_the_file() {
    let mut file = full();
    // Read without care, these differ in the last digit.
    for estimate in [1.1608543243243241, 0.8333333333333334, 5.0e-324] {
        file.verdicts[0].ratio.estimate = estimate;
        assert_eq!(RunFile::read(&file.write()).unwrap(), file);
        assert_eq!(
            pack::read(&pack::write(&[file.clone()]).unwrap()).unwrap(),
            [file.clone().packed()]
        );
    }
    for step in 0..10_000 {
        file.verdicts[0].ratio.high = 1.0 + f64::from(step).sqrt() / 97.0;
        file.verdicts[0].ratio.low = 1.0 / (1.0 + f64::from(step));
        assert_eq!(RunFile::read(&file.write()).unwrap().verdicts, file.verdicts);
    }
}

#[test]
fn a_file_with_nothing_but_its_name_is_readable() {
    let file = RunFile::read(r#"{"schema":2,"run":"stopped at once"}"#).unwrap();
    assert_eq!(file, RunFile::new("stopped at once"));
}

#[test]
fn fields_and_words_of_a_later_minor_form_are_read_over() {
    let text = full()
        .write()
        .replace("\"faster\"", "\"much-faster\"")
        .replace("\"separate\"", "\"alternating\"")
        .replace("\"kind\":\"poisson\"", "\"kind\":\"sawtooth\"")
        .replace("\"server-cpu\"", "\"joules\"")
        .replace("\"schema\":2", "\"schema\":2,\"colour\":{\"deep\":[1]}");
    let file = RunFile::read(&text).unwrap();
    assert_eq!(file.verdicts[0].decision, Decision::Other);
    assert_eq!(file.verdicts[0].measure, Measure::Other);
    assert_eq!(file.plan.design, Design::Other);
    assert_eq!(file.plan.schedule, Schedule::Other);
}

#[test]
fn an_unknown_schema_is_named_with_what_to_do() {
    let newer = full().write().replace("\"schema\":2", "\"schema\":7");
    let error = RunFile::read(&newer).unwrap_err();
    assert!(matches!(error, ReadError::UnknownSchema { found: 7 }));
    let words = error.to_string();
    assert!(words.contains("schema 7") && words.contains("newer lab"), "{words}");
    assert!(words.contains(&format!("up to {SCHEMA}")), "{words}");
    let zero = RunFile::read(r#"{"schema":0,"run":"x"}"#).unwrap_err();
    assert!(zero.to_string().contains("which no lab wrote"), "{zero}");
}

#[test]
fn what_is_no_run_file_is_said_to_be_none() {
    assert!(matches!(RunFile::read("{}").unwrap_err(), ReadError::NoSchema));
    assert!(matches!(RunFile::read(r#"{"schema":"1"}"#).unwrap_err(), ReadError::NoSchema));
    let error = RunFile::read("{\"schema\":1,\n\"run\":5}").unwrap_err().to_string();
    assert!(error.contains("line 2"), "{error}");
}

#[test]
fn a_ratio_that_could_not_be_estimated_survives_the_file() {
    let mut file = full();
    assert!(file.verdicts[0].ratio.is_known());
    file.verdicts[0].ratio = Ratio { estimate: f64::NAN, low: 0.0, high: f64::INFINITY };
    let ratio = RunFile::read(&file.write()).unwrap().verdicts[0].ratio;
    assert!(ratio.estimate.is_nan() && ratio.high.is_nan() && !ratio.is_known());
}

#[test]
fn a_figure_without_a_counter_is_none() {
    let block = full().blocks.remove(0);
    assert_eq!(block.server_ns_per_request(), Some(5_000.0));
    assert_eq!(block.requests_per_s(), Some(100_000.0));
    assert_eq!(block.client_ns_per_request(), None);
    assert_eq!(Block::default().requests_per_s(), None);
}

#[test]
fn runs_of_the_first_form_are_still_read() {
    let text = full().write().replace("\"schema\":2", "\"schema\":1");
    assert_eq!(RunFile::read(&text).unwrap(), RunFile { schema: 1, ..full() });
}

#[test]
fn packed_runs_keep_all_but_the_histograms_of_single_blocks() {
    let mut second = full();
    second.run = "another".into();
    second
        .blocks
        .push(Block { latency: Some(Histogram::new([(2_000, 10)])), ..second.blocks[0].clone() });
    let files = pack::read(&pack::write(&[full(), second.clone()]).unwrap()).unwrap();
    assert_eq!(files, [full().packed(), second.clone().packed()]);
    let [_, packed] = &files[..] else { panic!("{} files", files.len()) };
    assert_eq!(packed.latency_of("one").count(), 1_010);
    assert_eq!(packed.blocks[1].quantiles.unwrap().p50_ns, 2_000);
    let without = |mut file: RunFile| {
        file.latencies.clear();
        for block in &mut file.blocks {
            (block.latency, block.quantiles) = (None, None);
        }
        file
    };
    assert_eq!(without(packed.clone()), without(second.clone()));
    assert_eq!(packed.clone().packed(), *packed, "packing twice changes nothing");
    let mut text = String::new();
    let bytes = pack::write(&[second]).unwrap();
    lzma_rust2::XzReader::new(&bytes[..], false).read_to_string(&mut text).unwrap();
    let line = text.trim_matches(['[', ']', '\n']);
    assert_eq!(RunFile::read(line).unwrap(), *packed, "a line of it is a run file");
    assert_eq!(pack::read(&pack::write(&[]).unwrap()).unwrap(), []);
}

#[test]
fn what_is_no_packed_file_is_said_to_be_none() {
    let whole = pack::write(&[full()]).unwrap();
    for bytes in [&b""[..], b"{}", &whole[..whole.len() / 2]] {
        let error = pack::read(bytes).unwrap_err();
        assert!(matches!(error, ReadError::Packed(_)), "{error}");
    }
}
