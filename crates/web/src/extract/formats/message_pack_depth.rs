//! Measures the nesting depth of MessagePack without recursion, before the recursive reader runs.

/// Whether lists and maps in the first value are nested deeper than `most`. Invalid or incomplete
/// input returns `false` and is left to the reader.
pub(super) fn exceeds_depth(bytes: &[u8], most: usize) -> bool {
    // Each level takes at least one byte.
    if bytes.len() <= most {
        return false;
    }
    let mut rest = bytes;
    // The number of remaining values at each open level.
    let mut open: Vec<u64> = vec![1];
    while let Some(left) = open.last_mut() {
        if *left == 0 {
            open.pop();
            continue;
        }
        *left -= 1;
        match skip_value(&mut rest) {
            None => return false,
            Some(0) => {}
            Some(_) if open.len() > most => return true,
            Some(inside) => open.push(inside),
        }
    }
    false
}

/// Skips one scalar value, or the header of a list or map. Returns the number of values inside;
/// `None` at the end of the input.
fn skip_value(rest: &mut &[u8]) -> Option<u64> {
    let marker = number(rest, 1)?;
    let (bytes, values) = match marker {
        0x80..=0x8f => (0, 2 * (marker & 0x0f)),
        0x90..=0x9f => (0, marker & 0x0f),
        0xa0..=0xbf => (marker & 0x1f, 0),
        0xc4 | 0xd9 => (number(rest, 1)?, 0),
        0xc5 | 0xda => (number(rest, 2)?, 0),
        0xc6 | 0xdb => (number(rest, 4)?, 0),
        0xc7 => (number(rest, 1)? + 1, 0),
        0xc8 => (number(rest, 2)? + 1, 0),
        0xc9 => (number(rest, 4)? + 1, 0),
        0xcc | 0xd0 => (1, 0),
        0xcd | 0xd1 | 0xd4 => (2, 0),
        0xd5 => (3, 0),
        0xca | 0xce | 0xd2 => (4, 0),
        0xd6 => (5, 0),
        0xcb | 0xcf | 0xd3 => (8, 0),
        0xd7 => (9, 0),
        0xd8 => (17, 0),
        0xdc => (0, number(rest, 2)?),
        0xdd => (0, number(rest, 4)?),
        0xde => (0, 2 * number(rest, 2)?),
        0xdf => (0, 2 * number(rest, 4)?),
        _ => (0, 0),
    };
    *rest = rest.get(usize::try_from(bytes).ok()?..)?;
    Some(values)
}

/// Reads a big-endian integer of `bytes` bytes.
fn number(rest: &mut &[u8], bytes: usize) -> Option<u64> {
    let (first, behind) = rest.split_at_checked(bytes)?;
    *rest = behind;
    Some(first.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lists(depth: usize) -> Vec<u8> {
        [vec![0x91; depth], vec![0x01]].concat()
    }

    #[test]
    fn depth_is_counted_in_every_form_of_lists_and_maps() {
        for begin in [
            &b"\x91"[..],
            b"\x92\x01",
            b"\xdc\x00\x01",
            b"\xdd\x00\x00\x00\x01",
            b"\x81\xa1N",
            b"\xde\x00\x01\x07",
            b"\xdf\x00\x00\x00\x01\xc0",
        ] {
            let nested = |depth: usize| [begin.repeat(depth), vec![0x01]].concat();
            assert!(!exceeds_depth(&nested(4), 4), "{begin:?}");
            assert!(exceeds_depth(&nested(5), 4), "{begin:?}");
            assert!(exceeds_depth(&nested(500_000), 128), "{begin:?}");
        }
    }

    #[test]
    fn what_stands_beside_is_passed_over_and_what_is_none_is_left_to_the_reader() {
        let beside: &[&[u8]] = &[
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
        for one in beside {
            // A list of this value and of a list nested as deep as allowed, or one level deeper.
            let deep = |depth| [b"\x92", *one, &lists(depth)].concat();
            assert!(!exceeds_depth(&deep(3), 4) && exceeds_depth(&deep(4), 4), "{one:?}");
        }
        // Bytes after the value do not count, and missing values do not add depth.
        assert!(!exceeds_depth(&[vec![0x01], lists(9)].concat(), 4));
        assert!(!exceeds_depth(b"\xdd\xff\xff\xff\xff\x01\x01", 4));
        assert!(!exceeds_depth(b"\x91\xdb\xff\xff\xff\xff\x91\x91\x91\x91", 4));
    }
}
