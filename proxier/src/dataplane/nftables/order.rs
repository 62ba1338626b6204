//! The orders of slots that differ from those of the plan: what the past of a frontend leaves in its table.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use super::pick::Way;
use super::slots::{self, Draw, OUTSIDE, Present, Slots};
use crate::plan::FrontendPlan;
use crate::plan::frontend::Frontend;

/// The order of a frontend's slots: the place that each has in the order of the plan. Empty if that is the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Order {
    first: Box<[u32]>,
    outside: Box<[u32]>,
}

impl Order {
    /// Returns whether it is that of the plan.
    pub(super) fn is_planned(&self) -> bool {
        self.first.is_empty() && self.outside.is_empty()
    }
}

/// What the clients of a frontend get.
#[derive(Clone, Debug, Default)]
pub(super) struct Served {
    pub(super) slots: Present,
    /// `None` without slots.
    pub(super) way: Option<Way>,
}

impl Served {
    /// Returns the slots of a plan, in its order.
    pub(super) fn of(frontend: &Frontend, plan: &FrontendPlan) -> Self {
        let budget = slots::budget(plan);
        let balancing = &plan.profile.balancing;
        let slots = Slots::of(frontend, &plan.endpoints, balancing, budget);
        let Some(plan) = &plan.inside else {
            return Self {
                way: slots.pick(0).map(Way::One),
                slots: Present {
                    first: slots.endpoints,
                    outside: Vec::new(),
                },
            };
        };
        let inside = Slots::of(frontend, &plan.endpoints, &plan.balancing, budget);
        let way = match (inside.pick(0), slots.pick(OUTSIDE)) {
            (None, None) => None,
            (inside, outside) => Some(Way::Split { inside, outside }),
        };
        let slots = Present {
            first: inside.endpoints,
            outside: slots.endpoints,
        };
        Self { slots, way }
    }

    /// Returns them in another order.
    pub(super) fn in_order(mut self, order: &Order) -> Self {
        arrange(&mut self.slots.first, &order.first);
        arrange(&mut self.slots.outside, &order.outside);
        self
    }

    /// Returns the order that changes the fewest `present` slots.
    ///
    /// A number that is drawn at random means nothing. A hash means the same endpoint on every node, so those slots
    /// keep their order.
    pub(super) fn order_like(&self, present: &Present) -> Order {
        let [first, outside] = self.way.map_or([None, None], Way::picks);
        let is_random =
            |pick: Option<super::pick::Pick>| pick.is_some_and(|it| it.draw == Draw::Random);
        let mut order = Order::default();
        if is_random(first) {
            order.first = nearest(&self.slots.first, &present.first);
        }
        if is_random(outside) {
            order.outside = nearest(&self.slots.outside, &present.outside);
        }
        order
    }
}

fn arrange(slots: &mut Vec<SocketAddr>, order: &[u32]) {
    if !order.is_empty() {
        let places = order
            .iter()
            .filter_map(|place| usize::try_from(*place).ok());
        *slots = places
            .filter_map(|place| slots.get(place).copied())
            .collect();
    }
}

/// Returns the order of `planned` that changes the fewest `present` slots.
fn nearest(planned: &[SocketAddr], present: &[SocketAddr]) -> Box<[u32]> {
    if present
        .iter()
        .zip(planned)
        .all(|(present, planned)| present == planned)
    {
        return Box::default();
    }
    let mut left = BTreeMap::<SocketAddr, VecDeque<u32>>::new();
    for (place, endpoint) in (0..).zip(planned) {
        left.entry(*endpoint).or_default().push_back(place);
    }
    let mut take = |endpoint: &SocketAddr| left.get_mut(endpoint)?.pop_front();
    let kept = present.iter().take(planned.len()).map(&mut take);
    let mut kept: Vec<Option<u32>> = kept.collect();
    kept.resize(planned.len(), None);
    // The rest, in its order, fills the holes.
    let mut rest = planned.iter().filter_map(take);
    let filled = kept.into_iter();
    filled
        .filter_map(|kept| kept.or_else(|| rest.next()))
        .collect()
}
