//! `lab contenders`: who there is, in which state; with `--build`, builds them.

use peregrine_lab_contender::{State, table};

use crate::bench;
use crate::exit::{Exit, Failure};
use crate::options::Contenders;
use crate::places::Places;

pub(super) fn contenders(wanted: &Contenders, places: &Places) -> Result<Exit, Failure> {
    let recipes = bench::recipes(places, &wanted.names)?;
    let recipes = match wanted.names.is_empty() {
        true => bench::recipes(places, &["all".to_owned()])?,
        false => recipes,
    };
    if wanted.build {
        bench::build(&recipes, places)?;
    }
    let rows: Vec<_> =
        recipes.iter().map(|recipe| (recipe, recipe.state(&places.target))).collect();
    print!("{}", table(&rows));
    let has_failed = rows.iter().any(|(_, state)| matches!(state, State::BuildFailed { .. }));
    Ok(if has_failed { Exit::Unfit } else { Exit::Right })
}
