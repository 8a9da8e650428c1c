//! Measures the nesting depth of MessagePack without recursion, before the recursive reader runs.

/// Whether lists and maps in the first value are nested deeper than `depth_max`. If the input is
/// incomplete, only the part that is there counts. The unused marker 0xc1 is skipped like a scalar.
/// The reader rejects both.
pub(super) fn exceeds_depth(bytes: &[u8], depth_max: usize) -> bool {
    // Each level takes at least one byte, so this input cannot have `depth_max + 1` levels.
    if bytes.len() <= depth_max {
        return false;
    }
    let mut input = bytes;
    // The number of remaining values at each open level. The first level holds the top-level value
    // and is not nesting, so `open.len()` is the depth of a list or map that begins now.
    let mut open: Vec<u64> = vec![1];
    while let Some(remaining) = open.last_mut() {
        if *remaining == 0 {
            open.pop();
            continue;
        }
        *remaining -= 1;
        match skip_value(&mut input) {
            None => return false,
            // A scalar, or an empty list or map, which holds nothing deeper.
            Some(0) => {}
            Some(_) if open.len() > depth_max => return true,
            Some(values) => open.push(values),
        }
    }
    false
}

/// Skips one scalar value, or the header of a list or map. Returns the number of values inside the
/// list or map; `None` if the input is incomplete.
fn skip_value(input: &mut &[u8]) -> Option<u64> {
    let marker = read_uint(input, 1)?;
    // By the format's table of markers: the bytes still to skip after the marker and its length
    // field, and the number of values inside. Extensions skip one more byte, their type.
    let (bytes, values) = match marker {
        0x80..=0x8f => (0, 2 * (marker & 0x0f)),
        0x90..=0x9f => (0, marker & 0x0f),
        0xa0..=0xbf => (marker & 0x1f, 0),
        0xc4 | 0xd9 => (read_uint(input, 1)?, 0),
        0xc5 | 0xda => (read_uint(input, 2)?, 0),
        0xc6 | 0xdb => (read_uint(input, 4)?, 0),
        0xc7 => (read_uint(input, 1)? + 1, 0),
        0xc8 => (read_uint(input, 2)? + 1, 0),
        0xc9 => (read_uint(input, 4)? + 1, 0),
        0xcc | 0xd0 => (1, 0),
        0xcd | 0xd1 | 0xd4 => (2, 0),
        0xd5 => (3, 0),
        0xca | 0xce | 0xd2 => (4, 0),
        0xd6 => (5, 0),
        0xcb | 0xcf | 0xd3 => (8, 0),
        0xd7 => (9, 0),
        0xd8 => (17, 0),
        0xdc => (0, read_uint(input, 2)?),
        0xdd => (0, read_uint(input, 4)?),
        0xde => (0, 2 * read_uint(input, 2)?),
        0xdf => (0, 2 * read_uint(input, 4)?),
        _ => (0, 0),
    };
    *input = input.get(usize::try_from(bytes).ok()?..)?;
    Some(values)
}

/// Reads a big-endian integer of `len` bytes.
fn read_uint(input: &mut &[u8], len: usize) -> Option<u64> {
    let (bytes, remaining) = input.split_at_checked(len)?;
    *input = remaining;
    Some(bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nested_lists(depth: usize) -> Vec<u8> {
        [vec![0x91; depth], vec![0x01]].concat()
    }

    #[test]
    fn counts_the_depth_of_every_encoding_of_lists_and_maps() {
        for header in [
            &b"\x91"[..],
            b"\x92\x01",
            b"\xdc\x00\x01",
            b"\xdd\x00\x00\x00\x01",
            b"\x81\xa1N",
            b"\xde\x00\x01\x07",
            b"\xdf\x00\x00\x00\x01\xc0",
        ] {
            let nested = |depth: usize| [header.repeat(depth), vec![0x01]].concat();
            assert!(!exceeds_depth(&nested(4), 4), "{header:?}");
            assert!(exceeds_depth(&nested(5), 4), "{header:?}");
            assert!(exceeds_depth(&nested(500_000), 128), "{header:?}");
        }
    }

    #[test]
    fn skips_every_kind_of_scalar_and_ignores_incomplete_input() {
        let scalars: &[&[u8]] = &[
            b"\xc0",
            b"\xc3",
            b"\x7f",
            b"\xe0",
            b"\xc1",
            b"\xa2\x91\x91",
            b"\xd9\x02\x91\x91",
            b"\xda\x00\x01\x91",
            b"\xdb\x00\x00\x00\x01\x91",
            b"\xc4\x01\x91",
            b"\xc5\x00\x01\x91",
            b"\xc6\x00\x00\x00\x01\x91",
            b"\xc7\x01\x05\x91",
            b"\xc8\x00\x01\x05\x91",
            b"\xc9\x00\x00\x00\x01\x05\x91",
            b"\xcc\x91",
            b"\xcd\x91\x91",
            b"\xce\x91\x91\x91\x91",
            b"\xcf\x91\x91\x91\x91\x91\x91\x91\x91",
            b"\xca\x91\x91\x91\x91",
            b"\xcb\x91\x91\x91\x91\x91\x91\x91\x91",
            b"\xd0\x91",
            b"\xd1\x91\x91",
            b"\xd2\x91\x91\x91\x91",
            b"\xd3\x91\x91\x91\x91\x91\x91\x91\x91",
            b"\xd4\x05\x91",
            b"\xd5\x05\x91\x91",
            b"\xd6\x05\x91\x91\x91\x91",
            b"\xd7\x05\x91\x91\x91\x91\x91\x91\x91\x91",
            b"\xd8\x05\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91",
        ];
        for scalar in scalars {
            // A list of two elements: the scalar, then nested lists. The outer list is one level,
            // so three more are allowed and four are too many.
            let deep = |depth| [b"\x92", *scalar, &nested_lists(depth)].concat();
            assert!(!exceeds_depth(&deep(3), 4) && exceeds_depth(&deep(4), 4), "{scalar:?}");
        }
        // Bytes after the value do not count, and missing values do not add depth.
        assert!(!exceeds_depth(&[vec![0x01], nested_lists(9)].concat(), 4));
        assert!(!exceeds_depth(b"\xdd\xff\xff\xff\xff\x01\x01", 4));
        assert!(!exceeds_depth(b"\x91\xdb\xff\xff\xff\xff\x91\x91\x91\x91", 4));
    }
}
