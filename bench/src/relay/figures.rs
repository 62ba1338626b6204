//! The figures of all rounds, and their comparison with the targets.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::contestant::Contestant;

/// Which of two figures is the better one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Better {
    Less,
    More,
}

/// The limits of our figure; `None`: no limit.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Target {
    pub(super) better: Better,
    /// As a multiple of the better peer's figure.
    pub(super) peer: Option<f64>,
    /// As a multiple of the barest relay's figure.
    pub(super) barest: Option<f64>,
    /// In the figure's own unit.
    pub(super) absolute: Option<f64>,
}

/// One figure of all relays.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Figure {
    pub(super) name: &'static str,
    pub(super) unit: &'static str,
    pub(super) target: Target,
    /// One value per round.
    pub(super) values: BTreeMap<Contestant, Vec<f64>>,
}

/// The median of some values, and the lowest and the highest one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Spread {
    pub(super) low: f64,
    pub(super) median: f64,
    pub(super) high: f64,
}

impl Spread {
    /// `None` without values.
    pub(super) fn of(values: &[f64]) -> Option<Self> {
        let mut values = values.to_vec();
        values.sort_by(f64::total_cmp);
        Some(Self {
            low: *values.first()?,
            median: values[values.len() / 2],
            high: *values.last()?,
        })
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.2} ({:.2} .. {:.2})",
            self.median, self.low, self.high
        )
    }
}

impl Figure {
    pub(super) fn new(name: &'static str, unit: &'static str, target: Target) -> Self {
        Self {
            name,
            unit,
            target,
            values: BTreeMap::new(),
        }
    }

    pub(super) fn record(&mut self, contestant: Contestant, value: f64) {
        self.values.entry(contestant).or_default().push(value);
    }

    pub(super) fn spread(&self, contestant: Contestant) -> Option<Spread> {
        Spread::of(self.values.get(&contestant)?)
    }

    /// Returns the ratio of our figure to another relay's, computed round by round: two
    /// measurements of one round meet the same state of the machine.
    pub(super) fn ratio(&self, to: Contestant) -> Option<Spread> {
        let ours = self.values.get(&Contestant::Ours)?.iter();
        let ratios = ours.zip(self.values.get(&to)?);
        let ratios: Vec<f64> = ratios
            .filter(|(_, theirs)| **theirs > 0.0)
            .map(|(ours, theirs)| ours / theirs)
            .collect();
        Spread::of(&ratios)
    }

    /// Returns the better of HAProxy and nginx.
    pub(super) fn better_peer(&self) -> Option<Contestant> {
        let peers = self.values.keys().filter(|contestant| contestant.is_peer());
        let peers = peers.filter_map(|peer| Some((*peer, self.spread(*peer)?.median)));
        let by_median =
            |one: &(Contestant, f64), other: &(Contestant, f64)| one.1.total_cmp(&other.1);
        let best = match self.target.better {
            Better::Less => peers.min_by(by_median),
            Better::More => peers.max_by(by_median),
        };
        best.map(|(peer, _)| peer)
    }

    /// Returns a line for each target that is missed.
    pub(super) fn missed(&self) -> Vec<String> {
        let mut missed = Vec::new();
        let mut check = |what: String, value: Option<f64>, limit: Option<f64>| {
            let (Some(value), Some(limit)) = (value, limit) else {
                return;
            };
            let (is_missed, wanted) = match self.target.better {
                Better::Less => (value > limit, "at most"),
                Better::More => (value < limit, "at least"),
            };
            if is_missed {
                missed.push(format!("{}: {value:.2}{what}, {wanted} {limit}", self.name));
            }
        };
        let median = |to| self.ratio(to).map(|ratio| ratio.median);
        if let Some(peer) = self.better_peer() {
            check(format!(" times {peer}"), median(peer), self.target.peer);
        }
        let barest = Contestant::Barest;
        check(
            format!(" times the {barest} relay"),
            median(barest),
            self.target.barest,
        );
        let ours = self.spread(Contestant::Ours).map(|spread| spread.median);
        check(format!(" {}", self.unit), ours, self.target.absolute);
        missed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(better: Better) -> Figure {
        let target = Target {
            better,
            peer: Some(1.0),
            barest: Some(1.1),
            absolute: None,
        };
        let mut figure = Figure::new("figure", "us", target);
        for (contestant, values) in [
            (Contestant::Barest, [10.0, 20.0, 30.0]),
            (Contestant::Haproxy, [12.0, 24.0, 36.0]),
            (Contestant::Nginx, [15.0, 30.0, 45.0]),
            (Contestant::Ours, [12.0, 24.0, 42.0]),
        ] {
            for value in values {
                figure.record(contestant, value);
            }
        }
        figure
    }

    #[test]
    fn ratios_are_those_of_neighbours_in_time() {
        let ratio = figure(Better::Less).ratio(Contestant::Barest);
        let expected = Spread {
            low: 1.2,
            median: 1.2,
            high: 1.4,
        };
        assert_eq!(ratio, Some(expected));
    }

    #[test]
    fn a_missed_target_names_the_better_peer() {
        let cost = figure(Better::Less);
        assert_eq!(cost.better_peer(), Some(Contestant::Haproxy));
        assert_eq!(
            cost.missed(),
            ["figure: 1.20 times the barest relay, at most 1.1"]
        );
        let rate = figure(Better::More);
        assert_eq!(rate.better_peer(), Some(Contestant::Nginx));
        assert_eq!(rate.missed(), ["figure: 0.80 times nginx, at least 1"]);
    }
}
