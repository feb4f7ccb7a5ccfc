//! The two text formats of Prometheus, and the choice between them.

/// A text format of the exposition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exposition {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus' own text format, version 0.0.4: for curl, promtool and old scrapers.
    Prometheus,
}

impl Exposition {
    /// The format that an Accept header requests. Prometheus names OpenMetrics there; all others get the older format.
    pub(crate) fn for_accept(accept: Option<&str>) -> Self {
        match accept {
            Some(accept) if accept.contains("application/openmetrics-text") => Self::OpenMetrics,
            _ => Self::Prometheus,
        }
    }

    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// Converts OpenMetrics text to this format.
    pub(super) fn render(self, openmetrics: String) -> String {
        match self {
            Self::OpenMetrics => openmetrics,
            Self::Prometheus => to_prometheus(&openmetrics),
        }
    }
}

/// Only the comments differ: here a counter's family has the suffix of its samples, an info is a gauge, and units and
/// the end are missing.
fn to_prometheus(openmetrics: &str) -> String {
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
    fn prometheus_gets_openmetrics_and_curl_gets_plain_text() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        assert_eq!(Exposition::for_accept(Some(prometheus)), Exposition::OpenMetrics);
        assert_eq!(Exposition::for_accept(Some("*/*")), Exposition::Prometheus);
        assert_eq!(Exposition::for_accept(None), Exposition::Prometheus);
    }
}
