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
const CONSECUTIVE_FAILURES: MetricFamily<'_> = MetricFamily {
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
const ORDER_ERRORS: MetricFamily<'_> = MetricFamily {
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
    let families = [EXPIRY, RELOADS, RELOAD_ERRORS].into_iter();
    #[cfg(feature = "acme")]
    let families = families.chain([ORDERS, ORDER_ERRORS, CONSECUTIVE_FAILURES, NEXT_ORDER, PANICS]);
    families
}

/// Returns the seconds since the Unix epoch.
fn unix_seconds(time: SystemTime) -> f64 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since_epoch) => since_epoch.as_secs_f64(),
        Err(error) => -error.duration().as_secs_f64(),
    }
}

/// Writes the metrics of the listeners' TLS settings.
pub(crate) fn write(page: &mut Exposition, tls_configs: &[TlsConfig]) {
    let statuses: Vec<_> = tls_configs.iter().map(TlsConfig::status).collect();
    // Listeners may have different certificates with the same label. Of these, the one that expires
    // first is reported.
    let mut expiries: BTreeMap<&str, f64> = BTreeMap::new();
    for certificate in statuses.iter().flat_map(|status| &status.certificates) {
        let Some(expiry) = certificate.not_after.map(unix_seconds) else { continue };
        let earliest = expiries.entry(&certificate.label).or_insert(expiry);
        *earliest = earliest.min(expiry);
    }
    page.begin_family(&EXPIRY);
    for (label, expiry) in expiries {
        page.sample(&[("certificate", label)], expiry);
    }
    page.begin_family(&RELOADS);
    let succeeded = statuses.iter().map(|status| status.reloads).sum::<u64>();
    let failed = statuses.iter().map(|status| status.failed_reloads).sum::<u64>();
    page.sample(&[("result", "done")], succeeded);
    page.sample(&[("result", "failed")], failed);
    let mut errors: BTreeMap<&str, u64> = BTreeMap::new();
    for (reason, count) in statuses.iter().flat_map(|status| &status.failures_by_kind) {
        *errors.entry(reason).or_default() += count;
    }
    page.begin_family(&RELOAD_ERRORS);
    for (reason, count) in errors {
        page.sample(&[("reason", reason)], count);
    }
    #[cfg(feature = "acme")]
    write_orders(page, tls_configs);
}

/// Writes the metrics of ACME orders.
#[cfg(feature = "acme")]
fn write_orders(page: &mut Exposition, tls_configs: &[TlsConfig]) {
    // Several listeners may share one ACME client.
    let statuses = peregrine_acme::statuses(tls_configs.iter());
    let (mut issued, mut adopted, mut failed, mut panics) = (0, 0, 0, 0);
    // The most failures and the earliest next order of each name.
    let mut names: BTreeMap<&str, (u64, Option<f64>)> = BTreeMap::new();
    for status in &statuses {
        issued += status.issued;
        adopted += status.adopted;
        failed += status.failures;
        panics += status.panics;
        for name in &status.domains {
            let next = name.renew_at.map(unix_seconds);
            let entry = names.entry(&name.domain).or_insert((0, next));
            entry.0 = entry.0.max(u64::from(name.failures));
            entry.1 = match (entry.1, next) {
                (Some(earliest), Some(next)) => Some(earliest.min(next)),
                (earliest, next) => earliest.or(next),
            };
        }
    }
    page.begin_family(&ORDERS);
    for (result, count) in [("issued", issued), ("adopted", adopted), ("failed", failed)] {
        page.sample(&[("result", result)], count);
    }
    page.begin_family(&ORDER_ERRORS);
    for reason in peregrine_acme::FailureReason::ALL {
        let count_of =
            |status: &peregrine_acme::AcmeStatus| status.failures_by_reason.get(&reason).copied();
        let count = statuses.iter().filter_map(count_of).sum::<u64>();
        page.sample(&[("reason", reason.label())], count);
    }
    page.begin_family(&CONSECUTIVE_FAILURES);
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
    fn certificates_with_the_same_label_have_one_line_and_reloads_are_counted() {
        let self_signed = TlsConfig::self_signed(&["a.test"]).expect("valid name");
        let other = TlsConfig::self_signed(&["a.test"]).expect("valid name").tls;
        let reloaded = self_signed.tls.reload();
        assert!(reloaded.is_ok());
        let missing = Certificate::from_files("/no/such.pem", "/no/such.key").label("b\"c");
        assert!(self_signed.tls.upsert_certificate(missing).is_err());
        // Failed reloads are counted by reason.
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("tickets.keys");
        std::fs::write(&path, "00".repeat(32)).expect("a new file");
        let keys = TicketKeys::from_file(&path).expect("a valid key");
        let broken = self_signed.tls.clone().with_ticket_keys(keys);
        std::fs::write(&path, "no key").expect("the file exists");
        assert!(broken.reload().is_err());
        std::fs::remove_file(&path).expect("the file exists");
        assert!(broken.reload().is_err());
        let mut page = Exposition::new(ExpositionFormat::PrometheusText);
        write(&mut page, &[self_signed.tls, other, broken]);
        let text = page.finish();
        let lines: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let prefix = "peregrine_tls_certificate_expiry_timestamp_seconds{certificate=\"a.test\"} ";
        let expiries: Vec<_> = lines.iter().filter_map(|line| line.strip_prefix(prefix)).collect();
        assert_eq!(expiries.len(), 1, "{text}");
        let expiry: f64 = expiries[0].parse().expect("a number");
        assert!(expiry > unix_seconds(SystemTime::now()));
        assert!(lines.contains(&"peregrine_tls_reloads_total{result=\"done\"} 1"), "{text}");
        assert!(lines.contains(&"peregrine_tls_reloads_total{result=\"failed\"} 2"), "{text}");
        for reason in ["bad_ticket_keys", "unreadable"] {
            let line = format!("peregrine_tls_reload_errors_total{{reason=\"{reason}\"}} 1");
            assert!(lines.contains(&line.as_str()), "{text}");
        }
    }
}
