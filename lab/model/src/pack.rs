//! Packed run files: what is kept for good.
//!
//! A packed file holds all runs of a folder: a JSON array with a line for each run, compressed, so
//! that `xz -dc runs.json.xz` shows it. Every counter of every block is in it, and so is every
//! verdict and check. Of latencies each block keeps a few quantiles, and each contender one
//! histogram over all of its blocks, thinned to the classes that a report needs. Times that no
//! verdict rests on are rounded: starts to a millisecond, waits and parts of the server's time to a
//! microsecond. A report on the packed runs is the report on the runs.
//!
//! The blocks of a run stand as columns, one array for each field: that is smaller, and a table of
//! it is one call in most tools.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};

use lzma_rust2::{XzOptions, XzReader, XzWriter};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::block::{Block, Quantiles};
use crate::read::{Form, ReadError};
use crate::{RunFile, SCHEMA};

/// The name of the packed file of a folder.
pub const NAME: &str = "runs.json.xz";

/// How a packed file's name ends.
pub const ENDING: &str = ".json.xz";

/// The most bytes that a packed file may hold once it is unpacked.
const BYTES_MAX: u64 = 1 << 30;

const MICROSECOND_NS: u64 = 1_000;

const MILLISECOND_NS: u64 = 1_000_000;

/// How hard the compression tries, from 0 to 9.
const PRESET: u32 = 9;

impl RunFile {
    /// The run with its latencies as a packed file has them.
    #[must_use]
    pub fn packed(mut self) -> RunFile {
        let mut names: Vec<String> =
            self.blocks.iter().map(|block| block.contender.clone()).collect();
        names.sort_unstable();
        names.dedup();
        for name in names {
            let latency = self.latency_of(&name).thinned();
            round_all_but_one(self.blocks.iter_mut().filter_map(|block| {
                block.server_user_ns.as_mut().filter(|_| block.contender == name)
            }));
            round_all_but_one(self.blocks.iter_mut().filter_map(|block| {
                block.server_busiest_ns.as_mut().filter(|_| block.contender == name)
            }));
            if latency.count() > 0 {
                self.latencies.insert(name, latency);
            }
        }
        for block in &mut self.blocks {
            if let Some(latency) = block.latency.take() {
                block.quantiles = Quantiles::of(&latency);
            }
            block.started_ns = rounded(block.started_ns, MILLISECOND_NS);
            block.server_wait_ns = rounded(block.server_wait_ns, MICROSECOND_NS);
        }
        self.schema = SCHEMA;
        self
    }
}

/// The bytes of a packed file with these runs.
///
/// # Errors
///
/// Those of the compression.
pub fn write(files: &[RunFile]) -> io::Result<Vec<u8>> {
    let mut writer = XzWriter::new(Vec::new(), XzOptions::with_preset(PRESET))?;
    for (index, file) in files.iter().enumerate() {
        writer.write_all(if index == 0 { b"[\n" } else { b",\n" })?;
        writer.write_all(line(file)?.as_bytes())?;
    }
    writer.write_all(if files.is_empty() { b"[]\n" } else { b"\n]\n" })?;
    writer.finish()
}

/// The runs in the bytes of a packed file.
///
/// # Errors
///
/// [`ReadError`] says what is wrong and what to do about it.
pub fn read(bytes: &[u8]) -> Result<Vec<RunFile>, ReadError> {
    let mut text = String::new();
    let mut reader = XzReader::new(bytes, false).take(BYTES_MAX);
    reader.read_to_string(&mut text).map_err(ReadError::Packed)?;
    let forms: Vec<Form> = serde_json::from_str(&text).map_err(ReadError::Malformed)?;
    forms.iter().try_for_each(Form::check)?;
    runs(&text).map_err(ReadError::Malformed)
}

fn runs(text: &str) -> serde_json::Result<Vec<RunFile>> {
    let mut files: Vec<RunFile> = serde_json::from_str(text)?;
    let beside: Vec<Beside> = serde_json::from_str(text)?;
    files.iter_mut().zip(beside).try_for_each(|(file, beside)| beside.add_to(file))?;
    Ok(files)
}

/// One run, with blocks in either form: a line of a packed file is a run file, too.
pub(crate) fn run(text: &str) -> serde_json::Result<RunFile> {
    let mut file = serde_json::from_str(text)?;
    serde_json::from_str::<Beside>(text)?.add_to(&mut file)?;
    Ok(file)
}

/// What a packed run has beside the fields of a run file.
#[derive(Serialize, Deserialize)]
struct Beside {
    #[serde(default)]
    columns: BTreeMap<String, Vec<Value>>,
}

impl Beside {
    fn add_to(self, file: &mut RunFile) -> serde_json::Result<()> {
        file.blocks.append(&mut blocks(self.columns)?);
        Ok(())
    }
}

/// A run as one line, with its blocks as columns.
fn line(file: &RunFile) -> serde_json::Result<String> {
    let mut file = file.clone().packed();
    let beside = Beside { columns: columns(&std::mem::take(&mut file.blocks))? };
    let (run, beside) = (file.write(), serde_json::to_string(&beside)?);
    // Both are objects, which become one.
    let run = run.trim_end().strip_suffix('}').unwrap_or_default();
    Ok(format!("{run},{}", beside.strip_prefix('{').unwrap_or_default()))
}

fn columns(blocks: &[Block]) -> serde_json::Result<BTreeMap<String, Vec<Value>>> {
    let mut columns: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for (index, block) in blocks.iter().enumerate() {
        let Value::Object(fields) = serde_json::to_value(block)? else { continue };
        for (name, value) in fields {
            let column = columns.entry(name).or_default();
            column.resize(index, Value::Null);
            column.push(value);
        }
    }
    Ok(columns)
}

/// What a column does not have, or has as `null`, has its default.
fn blocks(columns: BTreeMap<String, Vec<Value>>) -> serde_json::Result<Vec<Block>> {
    let count = columns.values().map(Vec::len).max().unwrap_or(0);
    let mut blocks = vec![Map::new(); count];
    for (name, values) in columns {
        for (fields, value) in blocks.iter_mut().zip(values).filter(|(_, value)| !value.is_null()) {
            fields.insert(name.clone(), value);
        }
    }
    blocks.into_iter().map(|fields| Block::deserialize(Value::Object(fields))).collect()
}

/// Rounds times of which a report shows the sum: the last one gets what the others lose.
fn round_all_but_one<'a>(times_ns: impl Iterator<Item = &'a mut u64>) {
    let mut times_ns: Vec<&mut u64> = times_ns.collect();
    let Some((last_ns, others)) = times_ns.split_last_mut() else { return };
    for time_ns in others {
        **last_ns += **time_ns % MICROSECOND_NS;
        **time_ns = rounded(**time_ns, MICROSECOND_NS);
    }
}

fn rounded(nanoseconds: u64, unit: u64) -> u64 {
    nanoseconds / unit * unit
}
