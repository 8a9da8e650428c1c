//! Complete pages in both formats, and text that must be escaped.

use peregrine_metrics::{
    Exposition, ExpositionFormat, HistogramSnapshot, MetricFamily, MetricType,
};

const BOTH: [ExpositionFormat; 2] =
    [ExpositionFormat::PrometheusText, ExpositionFormat::OpenMetrics];

fn write(format: ExpositionFormat, write: impl FnOnce(&mut Exposition)) -> String {
    let mut page = Exposition::new(format);
    write(&mut page);
    page.finish()
}

fn all_types(page: &mut Exposition) {
    let family = |name, metric_type, unit, help| MetricFamily { name, metric_type, unit, help };
    page.begin_family(&family("asked", MetricType::Counter, "", "How often."));
    page.sample(&[("who", "me"), ("how", "")], 3);
    page.sample(&[("who", "you"), ("how", "kindly")], 4);
    page.begin_family(&family(
        "room_bytes",
        MetricType::Gauge,
        "bytes",
        "How much \"room\"\nthere \\ is.",
    ));
    page.sample(&[], 0.5);
    page.begin_family(&family("build", MetricType::Info, "", "What it is."));
    page.sample(&[("version", "1")], 1);
    page.begin_family(&family("took_seconds", MetricType::Histogram, "seconds", "How long."));
    let buckets = HistogramSnapshot { counts: vec![2, 0, 1], sum: 2_500_000_000 };
    page.histogram(&[("who", "me")], &[5_000_000, 1_000_000_000], &buckets, 1e9);
    page.begin_family(&family("silent", MetricType::Counter, "", "Nothing yet."));
}

#[test]
fn the_prometheus_text_format_is_correct() {
    assert_eq!(
        write(ExpositionFormat::PrometheusText, all_types),
        r#"# HELP asked_total How often.
# TYPE asked_total counter
asked_total{who="me",how=""} 3
asked_total{who="you",how="kindly"} 4
# HELP room_bytes How much "room"\nthere \\ is.
# TYPE room_bytes gauge
room_bytes 0.5
# HELP build_info What it is.
# TYPE build_info gauge
build_info{version="1"} 1
# HELP took_seconds How long.
# TYPE took_seconds histogram
took_seconds_bucket{who="me",le="0.005"} 2
took_seconds_bucket{who="me",le="1"} 2
took_seconds_bucket{who="me",le="+Inf"} 3
took_seconds_sum{who="me"} 2.5
took_seconds_count{who="me"} 3
# HELP silent_total Nothing yet.
# TYPE silent_total counter
"#
    );
}

#[test]
fn openmetrics_has_units_and_an_end_marker() {
    assert_eq!(
        write(ExpositionFormat::OpenMetrics, all_types),
        r#"# TYPE asked counter
# HELP asked How often.
asked_total{who="me",how=""} 3
asked_total{who="you",how="kindly"} 4
# TYPE room_bytes gauge
# UNIT room_bytes bytes
# HELP room_bytes How much \"room\"\nthere \\ is.
room_bytes 0.5
# TYPE build info
# HELP build What it is.
build_info{version="1"} 1
# TYPE took_seconds histogram
# UNIT took_seconds seconds
# HELP took_seconds How long.
took_seconds_bucket{who="me",le="0.005"} 2
took_seconds_bucket{who="me",le="1.0"} 2
took_seconds_bucket{who="me",le="+Inf"} 3
took_seconds_sum{who="me"} 2.5
took_seconds_count{who="me"} 3
# TYPE silent counter
# HELP silent Nothing yet.
# EOF
"#
    );
}

#[test]
fn label_values_are_escaped() {
    for (value, written) in [
        ("", ""),
        ("/users/{id}", "/users/{id}"),
        ("a\"b", "a\\\"b"),
        ("a\\b", "a\\\\b"),
        ("a\nb", "a\\nb"),
        ("\\\"\n", "\\\\\\\"\\n"),
        ("\u{fc}\u{1f426}\"", "\u{fc}\u{1f426}\\\""),
        ("a} 1\nevil 2", "a} 1\\nevil 2"),
    ] {
        for format in BOTH {
            let page = write(format, |page| {
                let metric_type = MetricType::Gauge;
                page.begin_family(&MetricFamily { name: "a", metric_type, unit: "", help: "" });
                page.sample(&[("l", value)], 1);
            });
            assert!(page.contains(&format!("\na{{l=\"{written}\"}} 1\n")), "{page}");
        }
    }
}

#[test]
fn special_float_values_have_names() {
    for (value, written) in [
        (f64::NAN, "NaN"),
        (f64::INFINITY, "+Inf"),
        (f64::NEG_INFINITY, "-Inf"),
        (0.0, "0"),
        (1e-9, "0.000000001"),
        (-1.5, "-1.5"),
    ] {
        let page = write(ExpositionFormat::PrometheusText, |page| {
            page.begin_family(&MetricFamily {
                name: "a",
                metric_type: MetricType::Gauge,
                unit: "",
                help: "",
            });
            page.sample(&[], value);
        });
        assert!(page.ends_with(&format!("\na {written}\n")), "{page}");
    }
}

#[test]
fn name_conflicts_of_samples_are_detected() {
    let family = |name, metric_type| MetricFamily { name, metric_type, unit: "", help: "" };
    let conflicts = |first: MetricFamily<'_>, second: MetricFamily<'_>| {
        let mut page = Exposition::new(ExpositionFormat::PrometheusText);
        page.begin_family(&first);
        page.has_name_conflict(&second)
    };
    let (counter, gauge, histogram) =
        (MetricType::Counter, MetricType::Gauge, MetricType::Histogram);
    for (first, second, expected) in [
        (family("a", counter), family("a", gauge), true),
        (family("a", counter), family("a_total", gauge), true),
        (family("a_total", gauge), family("a", counter), true),
        (family("a", histogram), family("a_count", gauge), true),
        (family("a_sum", gauge), family("a", histogram), true),
        (family("a", counter), family("b", counter), false),
        (family("a", gauge), family("a_count", gauge), false),
    ] {
        assert_eq!(conflicts(first, second), expected, "{first:?} {second:?}");
    }
}
