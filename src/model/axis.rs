//! The scale of a chart's axes.

/// The end of an axis that holds `max`, at least `least`: 1, 2, 4, 6 or 8 times a power of ten, so that its middle is a round number too.
pub(crate) fn end_of_axis(max: f64, least: f64) -> f64 {
    let max = if max.is_finite() { max.max(least) } else { least };
    let power = 10f64.powf(max.log10().floor());
    // 3 / 0.1 is more than 30.
    let fits = |step: &f64| step * power * (1.0 + 1e-9) >= max;
    power * [1.0, 2.0, 4.0, 6.0, 8.0].into_iter().find(fits).unwrap_or(10.0)
}

/// The whole multiples of `every` in `from..=to`, all in milliseconds.
pub(crate) fn ticks(from: u64, to: u64, every: u64) -> impl Iterator<Item = u64> {
    (from.div_ceil(every)..=to / every).map(move |number| number * every)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_ends_at_a_round_number_that_holds_all() {
        for (max, end) in [(0.0, 2.0), (2.0, 2.0), (2.1, 4.0), (5.0, 6.0), (8.1, 10.0), (10.0, 10.0), (11.0, 20.0)] {
            assert_eq!(end_of_axis(max, 2.0), end, "{max}");
        }
        assert_eq!(
            (end_of_axis(0.3, 0.1), end_of_axis(10_241.0, 2.0), end_of_axis(f64::NAN, 2.0)),
            (0.4, 20_000.0, 2.0)
        );
        for max in 1..5000 {
            let end = end_of_axis(f64::from(max), 2.0);
            assert!(end >= f64::from(max) && (max < 3 || end <= 2.0 * f64::from(max)), "{max}: {end}");
        }
    }

    #[test]
    fn ticks_are_at_whole_minutes() {
        assert_eq!(ticks(59_000, 300_000, 120_000).collect::<Vec<_>>(), [120_000, 240_000]);
        assert_eq!(ticks(120_000, 240_000, 120_000).collect::<Vec<_>>(), [120_000, 240_000]);
        assert_eq!(ticks(121_000, 239_000, 120_000).count(), 0);
    }
}
