//! Targets for HTTP/2.

use crate::h2_play::{Answer, play};
use crate::wire;
use peregrine_proto::h2::frame::{self, FrameHeader, FrameType, HEADER_BYTES};
use peregrine_proto::h2::hpack::{Decoder, Encoder, Field, FieldSink};
use peregrine_proto::h2::{Http2Error, Limits};
use peregrine_proto::{KnownField, field};

/// A whole connection, whose invariants are asserted after each step. Bits of the first byte choose
/// whether the rest is bytes or packed frames, the limits, and when the server responds.
pub fn h2(data: &[u8]) {
    let Some((way, rest)) = data.split_first() else { return };
    let mut bytes = wire::bytes(["hello"].iter());
    if way & 1 == 0 {
        bytes.extend_from_slice(rest);
    } else {
        unpack(rest, &mut bytes);
    }
    let limits = if way & 2 == 0 { Limits::DEFAULT } else { small() };
    let answer = [Answer::Late, Answer::Early, Answer::Never][usize::from(way >> 2 & 3) % 3];
    let whole = play(&limits, &bytes, &[], answer);
    let single: Vec<_> = (0..bytes.len()).collect();
    let step = usize::from(way >> 4) + 2;
    let some: Vec<_> = (0..bytes.len()).step_by(step).collect();
    for cuts in [single, some] {
        let pieces = play(&limits, &bytes, &cuts, answer);
        assert_eq!(whole, pieces, "the events do not depend on the cuts");
    }
}

fn small() -> Limits {
    Limits {
        request: peregrine_proto::Limits {
            head_bytes_max: 200,
            request_line_bytes_max: 60,
            field_bytes_max: 80,
            fields_max: 5,
            body_bytes_max: 100,
            trailer_bytes_max: 60,
            ..peregrine_proto::Limits::DEFAULT
        },
        concurrent_streams_max: 3,
        initial_stream_window: 50,
        hpack_decoder_table_bytes_max: 200,
        hpack_encoder_table_bytes_max: 100,
        header_block_bytes_max: 300,
        continuation_frames_max: 3,
        pending_control_frames_max: 10,
        abuse_budget_max: 100,
        ..Limits::DEFAULT
    }
}

/// Expands a type, flags, a stream, a length and that many bytes to a complete frame, so that
/// mutation does not separate payloads from their frame headers.
fn unpack(mut data: &[u8], out: &mut Vec<u8>) {
    while let Some(([kind, flags, stream, length], rest)) = data.split_first_chunk::<4>() {
        let (payload, rest) = rest.split_at(usize::from(*length).min(rest.len()));
        frame::write_frame(FrameType::from_u8(kind % 18), *flags, u32::from(*stream), payload, out);
        data = rest;
    }
}

/// Packs frames in the form that [`unpack`] reads; frames that are too long for it are omitted.
pub(crate) fn pack(mut frames: &[u8]) -> Vec<u8> {
    let mut packed = Vec::new();
    while let Some(header) = FrameHeader::parse(frames) {
        let Some(rest) = frames.get(HEADER_BYTES + header.length as usize..) else { break };
        let payload = &frames[HEADER_BYTES..HEADER_BYTES + header.length as usize];
        if let (Ok(length), Ok(stream)) =
            (u8::try_from(payload.len()), u8::try_from(header.stream_id))
        {
            packed.extend([header.frame_type.as_u8(), header.flags, stream, length]);
            packed.extend_from_slice(payload);
        }
        frames = rest;
    }
    packed
}

struct Kept(Vec<(Vec<u8>, Vec<u8>)>);

impl FieldSink for Kept {
    fn field(&mut self, field: Field<'_>) -> bool {
        self.0.push((field.name.to_vec(), field.value.to_vec()));
        true
    }
}

fn decode(decoder: &mut Decoder, block: &[u8]) -> Result<Kept, Http2Error> {
    let mut kept = Kept(Vec::new());
    decoder.decode(block, 1 << 24, &mut kept)?;
    decoder.assert_invariants();
    Ok(kept)
}

/// Header blocks: decoding gives the same fields as another decoder, and both decode the fields
/// when they are encoded again. The input is two blocks, each decoded twice, so that entries added
/// to the table the first time are used the second time.
pub fn hpack(data: &[u8]) {
    let (one, two) = data.split_at(data.first().map_or(0, |at| usize::from(*at) % data.len()));
    let (mut decoder, mut oracle) = (Decoder::new(), loona_hpack::Decoder::new());
    oracle.set_max_allowed_table_size(4096);
    let (mut encoder, mut again, mut other) =
        (Encoder::new(300), Decoder::new(), loona_hpack::Decoder::new());
    for block in [two, one, two, one] {
        // The oracle refuses a size update without a following field; the standard allows it.
        let block = [block, &[0x82]].concat();
        let Ok(Kept(fields)) = decode(&mut decoder, &block) else { return };
        assert_eq!(
            oracle.decode(&block).ok().as_ref(),
            Some(&fields),
            "the oracle decodes the same fields"
        );
        let mut out = Vec::new();
        encoder.begin_block(&mut out);
        let sound = |(name, value): &&(Vec<u8>, Vec<u8>)| {
            let is_value = value.iter().all(|byte| *byte == b'\t' || (b' '..0x7f).contains(byte));
            field::is_token(name) && !name.iter().any(u8::is_ascii_uppercase) && is_value
        };
        let sound: Vec<_> = fields.iter().filter(sound).cloned().collect();
        // Each twice, so that the table is used.
        for (name, value) in sound.iter().chain(&sound) {
            encoder.field(KnownField::from_name(name), name, value, &mut out);
            encoder.assert_invariants();
        }
        let twice: Vec<_> = sound.iter().chain(&sound).cloned().collect();
        let Ok(Kept(read)) = decode(&mut again, &out) else {
            panic!("the decoder reads the encoder's output")
        };
        assert_eq!(read, twice);
        if !out.is_empty() && !twice.is_empty() {
            assert_eq!(
                other.decode(&out).ok(),
                Some(twice),
                "the oracle reads the encoder's output"
            );
        }
    }
}
