//! The commands of this package, as functions of their arguments, so that another program can
//! offer them too.

mod load;
mod load_options;
mod null_server;
mod quantity;
mod text;

pub use load::load;
pub use load_options::{LOAD_USAGE, LoadOptions};
pub use null_server::{NULL_USAGE, null_server};
pub use quantity::number;
