//! The formats of Prometheus, and the choice between them.

/// A format of the exposition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exposition {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus' own text format, version 0.0.4: for curl, promtool and old scrapers.
    Text,
    /// Prometheus' protobuf format, the only one with native buckets: a scraper that wants them asks for it.
    Protobuf,
}

impl Exposition {
    /// The format that an Accept header (RFC 9110, section 12.5.1) prefers, and text for one that names none of them.
    pub(crate) fn for_accept(accept: Option<&str>) -> Self {
        let ranges = accept.unwrap_or_default().split(',').enumerate();
        let known = ranges.filter_map(|(at, range)| Some((Self::of_range(range)?, weight(range), at)));
        let wanted = known.filter(|(_, weight, _)| *weight > 0.0);
        let first = wanted.min_by(|one, other| other.1.total_cmp(&one.1).then(one.2.cmp(&other.2)));
        first.map_or(Self::Text, |(exposition, ..)| exposition)
    }

    /// The format of one media range of an Accept header.
    fn of_range(range: &str) -> Option<Self> {
        let mut parts = range.split(';').map(str::trim);
        let media_type = parts.next()?.to_ascii_lowercase();
        let has = |parameter: &str| parts.clone().any(|it| it.eq_ignore_ascii_case(parameter));
        match &*media_type {
            "application/openmetrics-text" => Some(Self::OpenMetrics),
            "text/plain" => Some(Self::Text),
            "application/vnd.google.protobuf" => {
                (has("proto=io.prometheus.client.MetricFamily") && has("encoding=delimited")).then_some(Self::Protobuf)
            }
            _ => None,
        }
    }

    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::Protobuf => {
                "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
            }
        }
    }
}

/// The weight of a media range, from 0 for "not this one" to 1.
fn weight(range: &str) -> f32 {
    let weights = range.split(';').skip(1).filter_map(|it| it.trim().strip_prefix("q="));
    weights.last().map_or(1.0, |weight| weight.parse().unwrap_or(0.0))
}

/// Only the comments differ: here a counter's family has the suffix of its samples, an info is a gauge, and units and
/// the end are missing.
pub(super) fn to_prometheus(openmetrics: &str) -> String {
    let mut text = String::with_capacity(openmetrics.len());
    // HELP comes before TYPE, and only TYPE says whether it is a counter.
    let mut help = None;
    for line in openmetrics.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ');
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            let (suffix, kind) = match kind {
                "counter" => ("_total", "counter"),
                "info" => ("_info", "gauge"),
                "unknown" => ("", "untyped"),
                kind => ("", kind),
            };
            if let Some((_, words)) = help.take() {
                text.extend(["# HELP ", name, suffix, " ", words, "\n"]);
            }
            text.extend(["# TYPE ", name, suffix, " ", kind, "\n"]);
        } else if !line.starts_with('#') {
            text.extend([line, "\n"]);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_and_infos_are_renamed_and_the_rest_is_kept() {
        let openmetrics = "# HELP a_seconds Some words.\n# TYPE a_seconds counter\n# UNIT a_seconds seconds\n\
            a_seconds_total{x=\"# y\"} 1\n# HELP b B.\n# TYPE b info\nb_info{v=\"1\"} 1\n\
            # HELP c C.\n# TYPE c gauge\nc 2\n# EOF\n";
        assert_eq!(
            to_prometheus(openmetrics),
            "# HELP a_seconds_total Some words.\n# TYPE a_seconds_total counter\na_seconds_total{x=\"# y\"} 1\n\
            # HELP b_info B.\n# TYPE b_info gauge\nb_info{v=\"1\"} 1\n# HELP c C.\n# TYPE c gauge\nc 2\n"
        );
    }

    #[test]
    fn each_scraper_gets_the_format_that_it_prefers() {
        let of = |accept: &str| Exposition::for_accept(Some(accept));
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        assert_eq!(of(prometheus), Exposition::OpenMetrics);
        let native = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited";
        assert_eq!(of(&format!("{native},{prometheus}")), Exposition::Protobuf);
        assert_eq!(of(&format!("{native};q=0.6,{prometheus}")), Exposition::OpenMetrics);
        assert_eq!(of(&format!("text/plain;version=0.0.4;q=0.9, {native}; q=0.6")), Exposition::Text);
        assert_eq!(of(&format!("{native};q=0,text/plain;q=0.1")), Exposition::Text);
        assert_eq!(of("application/vnd.google.protobuf;proto=other.Family;encoding=delimited"), Exposition::Text);
        assert_eq!(
            of("application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=text"),
            Exposition::Text
        );
        assert_eq!(of("*/*"), Exposition::Text);
        assert_eq!(Exposition::for_accept(None), Exposition::Text);
    }
}
