//! A simple mutator: changes inputs, splices them, and adds some of the results to its pool.

/// Generates inputs from initial inputs; the same random seed gives the same sequence.
pub struct Mutator {
    pool: Vec<Vec<u8>>,
    random: Random,
    input: Vec<u8>,
}

impl Mutator {
    /// Creates a mutator of the inputs in `pool`, with `number` as the random seed.
    ///
    /// # Panics
    ///
    /// If `pool` is empty.
    #[must_use]
    pub fn new(pool: Vec<Vec<u8>>, number: u64) -> Self {
        assert!(!pool.is_empty(), "there is at least one seed");
        Self { pool, random: Random::new(number), input: Vec::new() }
    }

    /// The next input, at most [`INPUT_BYTES_MAX`] long.
    #[expect(clippy::should_implement_trait, reason = "an iterator could not lend its items")]
    pub fn next(&mut self) -> &[u8] {
        let seed = self.random.below(self.pool.len());
        self.input.clear();
        self.input.extend_from_slice(&self.pool[seed]);
        for _ in 0..=self.random.below(6) {
            self.mutate_once();
        }
        self.input.truncate(INPUT_BYTES_MAX);
        if self.random.below(512) == 0 {
            // Keeps inputs that are further from the seeds; the pool has a maximum size.
            if self.pool.len() < POOL_MAX {
                self.pool.push(self.input.clone());
            } else {
                let at = self.random.below(self.pool.len());
                self.pool[at].clone_from(&self.input);
            }
        }
        &self.input
    }

    fn mutate_once(&mut self) {
        let length = self.input.len();
        let at = self.random.below(length + 1);
        let end = at + self.random.below(length - at + 1).min(64);
        match self.random.below(8) {
            0 if at < length => self.input[at] = self.random.byte(),
            1 if at < length => self.input[at] ^= 1 << self.random.below(8),
            2 => drop(self.input.drain(at..end)),
            3 => {
                let copy = self.input[at..end].to_vec();
                let insert_at = self.random.below(length + 1);
                self.input.splice(insert_at..insert_at, copy);
            }
            4 => {
                let other = self.random.below(self.pool.len());
                let other = &self.pool[other];
                let from = self.random.below(other.len() + 1);
                self.input.splice(at.., other[from..].iter().copied());
            }
            5 => {
                let byte = SPECIAL_BYTES[self.random.below(SPECIAL_BYTES.len())];
                self.input.insert(at, byte);
            }
            _ => {
                let word = SPECIAL_WORDS[self.random.below(SPECIAL_WORDS.len())];
                let replaced_end = if self.random.below(2) == 0 { at } else { end };
                self.input.splice(at..replaced_end, word.iter().copied());
            }
        }
    }
}

/// A small random number generator: xorshift64*.
struct Random(u64);

impl Random {
    fn new(number: u64) -> Self {
        // The state must not be zero; the multiplication separates the sequences of similar seeds.
        Self(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn number(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.number() % end as u64).expect("the value is below a usize")
    }

    fn byte(&mut self) -> u8 {
        self.number().to_le_bytes()[0]
    }
}

/// The longest input, in bytes.
pub const INPUT_BYTES_MAX: usize = 4096;
const POOL_MAX: usize = 4096;
const SPECIAL_BYTES: &[u8] = b"\r\n\t\0 :;,=\"\\/?#%*[]@019afx\x7f\x80\xff";
const SPECIAL_WORDS: &[&[u8]] = &[
    b"\r\n",
    b"\r\n\r\n",
    b"\n\n",
    b"\r\r\n",
    b"Host: a\r\n",
    b"Content-Length: 5\r\n",
    b"Content-Length: 18446744073709551615\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Connection: close\r\n",
    b"Connection: keep-alive, upgrade\r\n",
    b"Upgrade: a\r\n",
    b"Expect: 100-continue\r\n",
    b"GET / HTTP/1.1\r\n",
    b"POST /a?b HTTP/1.0\r\n",
    b"HEAD http://a:80/b HTTP/1.1\r\n",
    b"0\r\n\r\n",
    b"5\r\nhello\r\n",
    b"ffffffffffffffff",
    b";a=\"b\\\"\"",
    b"chunked, chunked",
    b"[::1]:80",
];
