//! Targets for HTTP/2.

use crate::h2_play::{ResponseTiming, play};
use crate::wire;
use peregrine_proto::h2::frame::{self, FrameHeader, FrameType, HEADER_BYTES};
use peregrine_proto::h2::hpack::{Decoder, Encoder, Field, FieldSink};
use peregrine_proto::h2::{Http2Error, Limits};
use peregrine_proto::{KnownField, field};

/// A whole connection, whose invariants are asserted after each step. Bits of the first byte choose
/// whether the rest is bytes or packed frames, the limits, and when the server responds.
pub fn h2(data: &[u8]) {
    let Some((options, rest)) = data.split_first() else { return };
    let mut bytes = wire::bytes(["hello"].iter());
    if options & 1 == 0 {
        bytes.extend_from_slice(rest);
    } else {
        unpack(rest, &mut bytes);
    }
    let limits = if options & 2 == 0 { Limits::DEFAULT } else { small_limits() };
    let timing = [ResponseTiming::RequestComplete, ResponseTiming::Early, ResponseTiming::Never]
        [usize::from(options >> 2 & 3) % 3];
    let expected = play(&limits, &bytes, &[], timing);
    let single: Vec<_> = (0..bytes.len()).collect();
    let step = usize::from(options >> 4) + 2;
    let steps: Vec<_> = (0..bytes.len()).step_by(step).collect();
    for cuts in [single, steps] {
        let actual = play(&limits, &bytes, &cuts, timing);
        assert_eq!(expected, actual, "the events do not depend on the cuts");
    }
}

fn small_limits() -> Limits {
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
    while let Some(([frame_type, flags, stream, length], rest)) = data.split_first_chunk::<4>() {
        let (payload, rest) = rest.split_at(usize::from(*length).min(rest.len()));
        frame::write_frame(
            FrameType::from_u8(frame_type % 18),
            *flags,
            u32::from(*stream),
            payload,
            out,
        );
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

struct FieldCollector(Vec<(Vec<u8>, Vec<u8>)>);

impl FieldSink for FieldCollector {
    fn field(&mut self, field: Field<'_>) -> bool {
        self.0.push((field.name.to_vec(), field.value.to_vec()));
        true
    }
}

fn decode(decoder: &mut Decoder, block: &[u8]) -> Result<FieldCollector, Http2Error> {
    let mut collector = FieldCollector(Vec::new());
    decoder.decode(block, 1 << 24, &mut collector)?;
    decoder.assert_invariants();
    Ok(collector)
}

/// Header blocks: two decoders return the same fields, and also after these were encoded again. The
/// input is two blocks, each of which is decoded twice, so that the second time uses entries that
/// the first time has added to the table.
pub fn hpack(data: &[u8]) {
    let (first, second) = data.split_at(data.first().map_or(0, |at| usize::from(*at) % data.len()));
    let (mut decoder, mut oracle) = (Decoder::new(), loona_hpack::Decoder::new());
    oracle.set_max_allowed_table_size(4096);
    let (mut encoder, mut round_trip_decoder, mut second_oracle) =
        (Encoder::new(300), Decoder::new(), loona_hpack::Decoder::new());
    for block in [second, first, second, first] {
        // The oracle rejects a size update without a following field; the standard allows it.
        let block = [block, &[0x82]].concat();
        let Ok(FieldCollector(fields)) = decode(&mut decoder, &block) else { return };
        assert_eq!(
            oracle.decode(&block).ok().as_ref(),
            Some(&fields),
            "the oracle decodes the same fields"
        );
        let mut out = Vec::new();
        encoder.begin_block(&mut out);
        let is_well_formed = |(name, value): &&(Vec<u8>, Vec<u8>)| {
            let is_value = value.iter().all(|byte| *byte == b'\t' || (b' '..0x7f).contains(byte));
            field::is_token(name) && !name.iter().any(u8::is_ascii_uppercase) && is_value
        };
        let well_formed: Vec<_> = fields.iter().filter(is_well_formed).cloned().collect();
        // Each twice, so that the table is used.
        for (name, value) in well_formed.iter().chain(&well_formed) {
            encoder.field(KnownField::from_name(name), name, value, &mut out);
            encoder.assert_invariants();
        }
        let twice: Vec<_> = well_formed.iter().chain(&well_formed).cloned().collect();
        let Ok(FieldCollector(decoded)) = decode(&mut round_trip_decoder, &out) else {
            panic!("the decoder reads the encoder's output")
        };
        assert_eq!(decoded, twice);
        if !out.is_empty() && !twice.is_empty() {
            assert_eq!(
                second_oracle.decode(&out).ok(),
                Some(twice),
                "the oracle reads the encoder's output"
            );
        }
    }
}
