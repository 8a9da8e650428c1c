//! The two formats of a metrics page, and the negotiation between them.

/// The format of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExpositionFormat {
    /// OpenMetrics 1.0, which ends with `# EOF`, so that truncation is noticed.
    OpenMetrics,
    /// The Prometheus text format, version 0.0.4; the default, also for browsers.
    #[default]
    PrometheusText,
}

impl ExpositionFormat {
    /// The value of `Content-Type`.
    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::PrometheusText => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// Chooses the format for these values of `Accept`: OpenMetrics if it is listed and not less
    /// preferred than text.
    #[must_use]
    pub fn negotiate<'a>(accept: impl Iterator<Item = &'a str>) -> Self {
        let (mut openmetrics_weight, mut text_weight) = (0, 0);
        for range in accept.flat_map(|value| value.split(',')) {
            let mut parts = range.split(';').map(str::trim);
            let name = parts.next().unwrap_or_default();
            let (mut version, mut weight) = ("", 1000);
            for part in parts {
                match part.split_once('=') {
                    Some((name, value)) if name.eq_ignore_ascii_case("q") => {
                        weight = parse_qvalue(value)
                    }
                    Some((name, value)) if name.eq_ignore_ascii_case("version") => {
                        version = value.trim_matches('"');
                    }
                    _ => {}
                }
            }
            let is_type = |media_type: &str| name.eq_ignore_ascii_case(media_type);
            if is_type("application/openmetrics-text") && matches!(version, "" | "1.0.0") {
                openmetrics_weight = openmetrics_weight.max(weight);
            } else if is_type("text/plain") && matches!(version, "" | "0.0.4") {
                text_weight = text_weight.max(weight);
            }
        }
        if openmetrics_weight > 0 && openmetrics_weight >= text_weight {
            Self::OpenMetrics
        } else {
            Self::PrometheusText
        }
    }
}

/// A weight of RFC 9110 §12.4.2, in thousandths; an invalid weight counts as zero.
fn parse_qvalue(weight: &str) -> u32 {
    let weight: f64 = weight.trim().parse().unwrap_or(0.0);
    // A number from 0 to 1000 fits.
    (weight.clamp(0.0, 1.0) * 1000.0) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openmetrics_is_chosen_if_it_is_accepted_and_preferred() {
        use ExpositionFormat::{OpenMetrics, PrometheusText};
        for (accept, expected) in [
            (&[][..], PrometheusText),
            (&["*/*"], PrometheusText),
            (&["text/html,application/xhtml+xml,*/*;q=0.8"], PrometheusText),
            (&["text/plain;version=0.0.4"], PrometheusText),
            (&["application/openmetrics-text"], OpenMetrics),
            (&["application/OpenMetrics-text; version=1.0.0; charset=utf-8"], OpenMetrics),
            (&["application/openmetrics-text;version=\"1.0.0\""], OpenMetrics),
            (&["application/openmetrics-text;version=0.0.1"], PrometheusText),
            (&["application/openmetrics-text;q=0"], PrometheusText),
            (&["application/openmetrics-text;q=nan"], PrometheusText),
            (&["application/openmetrics-text;q=-1"], PrometheusText),
            (&["application/openmetrics-text;q"], OpenMetrics),
            (&[";;;,,=;q=;", ""], PrometheusText),
            (&["application/openmetrics-text;q=0.3,text/plain;q=0.5"], PrometheusText),
            (&["text/plain;q=0.5", "application/openmetrics-text;q=0.5"], OpenMetrics),
            // Prometheus 2 and 3.
            (
                &["application/openmetrics-text;version=1.0.0,application/openmetrics-text;\
                   version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"],
                OpenMetrics,
            ),
            (
                &["application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
                   application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;\
                   escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"],
                OpenMetrics,
            ),
            (&["text/plain;version=0.0.4;q=1,*/*;q=0.1"], PrometheusText),
        ] {
            assert_eq!(ExpositionFormat::negotiate(accept.iter().copied()), expected, "{accept:?}");
        }
    }
}
