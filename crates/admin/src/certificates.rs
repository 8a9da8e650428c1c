//! Metrics of certificates: expiry, reloads, and ACME orders.

use peregrine_metrics::{Exposition, MetricFamily, MetricType};
use peregrine_tls::TlsConfig;
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

const EXPIRY: MetricFamily<'_> = MetricFamily {
    name: "peregrine_tls_certificate_expiry_timestamp_seconds",
    metric_type: MetricType::Gauge,
    unit: "seconds",
    help: "Expiry time of a certificate, since the Unix epoch.",
};

const RELOADS: MetricFamily<'_> = MetricFamily {
    name: "peregrine_tls_reloads",
    metric_type: MetricType::Counter,
    unit: "",
    help: "Reloads of certificates and related files, by result.",
};

const RELOAD_ERRORS: MetricFamily<'_> = MetricFamily {
    name: "peregrine_tls_reload_errors",
    metric_type: MetricType::Counter,
    unit: "",
    help: "Failed reloads of certificates and related files, by reason.",
};

#[cfg(feature = "acme")]
const ORDERS: MetricFamily<'_> = MetricFamily {
    name: "peregrine_acme_orders",
    metric_type: MetricType::Counter,
    unit: "",
    help: "Certificates issued, failed orders, and certificates taken over from other instances.",
};

#[cfg(feature = "acme")]
const FAILURES: MetricFamily<'_> = MetricFamily {
    name: "peregrine_acme_failures",
    metric_type: MetricType::Gauge,
    unit: "",
    help: "Failed certificate orders for a name since the last success.",
};

#[cfg(feature = "acme")]
const NEXT_ORDER: MetricFamily<'_> = MetricFamily {
    name: "peregrine_acme_next_order_timestamp_seconds",
    metric_type: MetricType::Gauge,
    unit: "seconds",
    help: "Time of the next certificate order for a name, since the Unix epoch.",
};

#[cfg(feature = "acme")]
const ERRORS: MetricFamily<'_> = MetricFamily {
    name: "peregrine_acme_errors",
    metric_type: MetricType::Counter,
    unit: "",
    help: "Failed certificate orders, by reason.",
};

#[cfg(feature = "acme")]
const PANICS: MetricFamily<'_> = MetricFamily {
    name: "peregrine_acme_panics",
    metric_type: MetricType::Counter,
    unit: "",
    help: "Panics while getting or storing certificates. Both continue after a panic.",
};

/// All families on the page.
#[cfg(test)]
pub(crate) fn families() -> impl Iterator<Item = MetricFamily<'static>> {
    let own = [EXPIRY, RELOADS, RELOAD_ERRORS].into_iter();
    #[cfg(feature = "acme")]
    let own = own.chain([ORDERS, ERRORS, FAILURES, NEXT_ORDER, PANICS]);
    own
}

fn seconds(time: SystemTime) -> f64 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => after.as_secs_f64(),
        Err(before) => -before.duration().as_secs_f64(),
    }
}

/// Writes the metrics of the listeners' TLS settings.
pub(crate) fn write(page: &mut Exposition, all: &[TlsConfig]) {
    let each: Vec<_> = all.iter().map(TlsConfig::status).collect();
    // Listeners may have certificates with the same label: report the one that expires first.
    let mut ends: BTreeMap<&str, f64> = BTreeMap::new();
    for certificate in each.iter().flat_map(|status| &status.certificates) {
        let Some(end) = certificate.not_after.map(seconds) else { continue };
        let known = ends.entry(&certificate.label).or_insert(end);
        *known = known.min(end);
    }
    page.begin_family(&EXPIRY);
    for (label, end) in ends {
        page.sample(&[("certificate", label)], end);
    }
    page.begin_family(&RELOADS);
    let done = each.iter().map(|status| status.reloads).sum::<u64>();
    let failed = each.iter().map(|status| status.failed_reloads).sum::<u64>();
    page.sample(&[("result", "done")], done);
    page.sample(&[("result", "failed")], failed);
    let mut errors: BTreeMap<&str, u64> = BTreeMap::new();
    for (reason, count) in each.iter().flat_map(|status| &status.failures_by_kind) {
        *errors.entry(reason).or_default() += count;
    }
    page.begin_family(&RELOAD_ERRORS);
    for (reason, count) in errors {
        page.sample(&[("reason", reason)], count);
    }
    #[cfg(feature = "acme")]
    write_orders(page, all);
}

#[cfg(feature = "acme")]
fn write_orders(page: &mut Exposition, all: &[TlsConfig]) {
    // Several listeners may share one ACME client.
    let getters = peregrine_acme::statuses(all.iter());
    let (mut issued, mut adopted, mut failed, mut panics) = (0, 0, 0, 0);
    let mut names: BTreeMap<&str, (u64, Option<f64>)> = BTreeMap::new();
    for status in &getters {
        issued += status.issued;
        adopted += status.adopted;
        failed += status.failures;
        panics += status.panics;
        for name in &status.domains {
            let next = name.renew_at.map(seconds);
            let known = names.entry(&name.domain).or_insert((0, next));
            known.0 = known.0.max(u64::from(name.failures));
            known.1 = match (known.1, next) {
                (Some(known), Some(next)) => Some(known.min(next)),
                (known, next) => known.or(next),
            };
        }
    }
    page.begin_family(&ORDERS);
    for (result, count) in [("issued", issued), ("adopted", adopted), ("failed", failed)] {
        page.sample(&[("result", result)], count);
    }
    page.begin_family(&ERRORS);
    for reason in peregrine_acme::FailureReason::ALL {
        let of =
            |status: &peregrine_acme::AcmeStatus| status.failures_by_reason.get(&reason).copied();
        let count = getters.iter().filter_map(of).sum::<u64>();
        page.sample(&[("reason", reason.label())], count);
    }
    page.begin_family(&FAILURES);
    for (name, (failures, _)) in &names {
        page.sample(&[("name", name)], *failures as f64);
    }
    page.begin_family(&NEXT_ORDER);
    for (name, (_, next)) in &names {
        if let Some(next) = next {
            page.sample(&[("name", name)], *next);
        }
    }
    page.begin_family(&PANICS);
    page.sample(&[], panics);
}

#[cfg(test)]
mod tests {
    use super::*;
    use peregrine_metrics::ExpositionFormat;
    use peregrine_tls::{Certificate, TicketKeys};

    #[test]
    fn each_certificate_has_one_line_whoever_serves_it_and_reloads_are_counted() {
        let made = TlsConfig::self_signed(&["a.test"]).expect("valid name");
        let other = TlsConfig::self_signed(&["a.test"]).expect("valid name").tls;
        let reloaded = made.tls.reload();
        assert!(reloaded.is_ok());
        let missing = Certificate::from_files("/no/such.pem", "/no/such.key").label("b\"c");
        assert!(made.tls.upsert_certificate(missing).is_err());
        // Failed reloads are counted by reason.
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tickets.keys");
        std::fs::write(&path, "00".repeat(32)).expect("a new file");
        let keys = TicketKeys::from_file(&path).expect("a valid key");
        let broken = made.tls.clone().with_ticket_keys(keys);
        std::fs::write(&path, "no key").expect("the file exists");
        assert!(broken.reload().is_err());
        std::fs::remove_file(&path).expect("the file exists");
        assert!(broken.reload().is_err());
        let mut page = Exposition::new(ExpositionFormat::PrometheusText);
        write(&mut page, &[made.tls, other, broken]);
        let text = page.finish();
        let lines: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let ends = "peregrine_tls_certificate_expiry_timestamp_seconds{certificate=\"a.test\"} ";
        let found: Vec<_> = lines.iter().filter_map(|line| line.strip_prefix(ends)).collect();
        assert_eq!(found.len(), 1, "{text}");
        let end: f64 = found[0].parse().expect("a number");
        assert!(end > seconds(SystemTime::now()));
        assert!(lines.contains(&"peregrine_tls_reloads_total{result=\"done\"} 1"), "{text}");
        assert!(lines.contains(&"peregrine_tls_reloads_total{result=\"failed\"} 2"), "{text}");
        for reason in ["bad_ticket_keys", "unreadable"] {
            let line = format!("peregrine_tls_reload_errors_total{{reason=\"{reason}\"}} 1");
            assert!(lines.contains(&line.as_str()), "{text}");
        }
    }
}
