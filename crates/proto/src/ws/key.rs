//! The key of a handshake, and the answer to it.

/// A random value chosen by the client for one handshake: 16 bytes in base64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandshakeKey([u8; KEY_BYTES]);

/// The length of an encoded key.
const KEY_BYTES: usize = 24;

/// The length of the answer to a key.
pub const ACCEPT_BYTES: usize = 28;

impl HandshakeKey {
    /// Creates a key from 16 bytes, which a client must choose at random.
    #[must_use]
    pub fn new(nonce: [u8; 16]) -> Self {
        let mut key = [b'='; KEY_BYTES];
        write_base64(&nonce, &mut key);
        Self(key)
    }

    /// Reads the value of Sec-WebSocket-Key.
    // RFC 6455 §4.2.1: a base64-encoded value that, when decoded, is 16 bytes in length.
    #[must_use]
    pub fn parse(value: &[u8]) -> Option<Self> {
        let key: [u8; KEY_BYTES] = value.try_into().ok()?;
        let (text, end) = key.split_at(KEY_BYTES - 2);
        let is_base64 =
            text.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/'));
        (is_base64 && end == b"==").then_some(Self(key))
    }

    /// The key in the form of Sec-WebSocket-Key.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("base64 is ASCII")
    }

    /// The value of Sec-WebSocket-Accept.
    ///
    /// ```
    /// use peregrine_proto::ws::key::HandshakeKey;
    ///
    /// let key = HandshakeKey::parse(b"dGhlIHNhbXBsZSBub25jZQ==").unwrap();
    /// assert_eq!(&key.derive_accept(), b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    /// ```
    // RFC 6455 §4.2.2: the key and a fixed text, hashed by SHA-1, in base64.
    #[must_use]
    pub fn derive_accept(&self) -> [u8; ACCEPT_BYTES] {
        const HANDSHAKE_GUID: &[u8; 36] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
        let mut message = [0; KEY_BYTES + HANDSHAKE_GUID.len()];
        message[..KEY_BYTES].copy_from_slice(&self.0);
        message[KEY_BYTES..].copy_from_slice(HANDSHAKE_GUID);
        let mut accept = [b'='; ACCEPT_BYTES];
        write_base64(&sha1(&message), &mut accept);
        accept
    }
}

/// Writes base64 without its padding.
fn write_base64(bytes: &[u8], out: &mut [u8]) {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = out.iter_mut();
    for group in bytes.chunks(3) {
        let [a, b, c] = [0, 1, 2].map(|at| u32::from(group.get(at).copied().unwrap_or(0)));
        let bits = a << 16 | b << 8 | c;
        for (shift, digit) in [18, 12, 6, 0].into_iter().zip(out.by_ref()).take(group.len() + 1) {
            *digit = DIGITS[(bits >> shift & 63) as usize];
        }
    }
}

/// SHA-1, which is no longer cryptographically secure. The handshake uses it only to show that the
/// answer comes from a server that implements WebSocket.
#[doc(hidden)]
#[must_use]
pub fn sha1(message: &[u8]) -> [u8; 20] {
    let mut state = [0x6745_2301, 0xEFCD_AB89, 0x98BA_DCFE, 0x1032_5476, 0xC3D2_E1F0];
    let (blocks, rest) = message.as_chunks::<64>();
    for block in blocks {
        add_block(&mut state, block);
    }
    // The rest is followed by a one bit, zeros, and the length in bits.
    let mut end = [0; 128];
    end[..rest.len()].copy_from_slice(rest);
    end[rest.len()] = 0x80;
    let length = if rest.len() < 56 { 64 } else { 128 };
    end[length - 8..length].copy_from_slice(&(message.len() as u64 * 8).to_be_bytes());
    for block in end[..length].as_chunks::<64>().0 {
        add_block(&mut state, block);
    }
    let mut digest = [0; 20];
    for (bytes, word) in digest.as_chunks_mut::<4>().0.iter_mut().zip(state) {
        *bytes = word.to_be_bytes();
    }
    digest
}

fn add_block(state: &mut [u32; 5], block: &[u8; 64]) {
    let mut words = [0; 80];
    for (word, bytes) in words.iter_mut().zip(block.as_chunks::<4>().0) {
        *word = u32::from_be_bytes(*bytes);
    }
    for at in 16..80 {
        let mixed = words[at - 3] ^ words[at - 8] ^ words[at - 14] ^ words[at - 16];
        words[at] = mixed.rotate_left(1);
    }
    let [mut a, mut b, mut c, mut d, mut e] = *state;
    for (at, word) in words.into_iter().enumerate() {
        let (mixed, constant) = match at {
            0..20 => (b & c | !b & d, 0x5A82_7999),
            20..40 => (b ^ c ^ d, 0x6ED9_EBA1),
            40..60 => (b & c | b & d | c & d, 0x8F1B_BCDC),
            _ => (b ^ c ^ d, 0xCA62_C1D6_u32),
        };
        let sum = [mixed, e, constant, word].into_iter().fold(a.rotate_left(5), u32::wrapping_add);
        (e, d, c, b, a) = (d, c, b.rotate_left(30), a, sum);
    }
    for (word, more) in state.iter_mut().zip([a, b, c, d, e]) {
        *word = word.wrapping_add(more);
    }
}
