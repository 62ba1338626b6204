//! The values that many objects have: one copy of each, with a number.

use std::sync::Arc;

use rapidhash::RapidHashMap;

use crate::cluster::model::Location;

/// A value that many objects have.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum SharedValue {
    /// The name of a port, a node, a zone or a region.
    Text(Arc<str>),
    /// The location of endpoints.
    Location(Arc<Location>),
}

/// Numbers the shared values of the objects at rest, so that an endpoint's node costs two bytes.
///
/// # Invariant
/// Equal values have the same number as long as an object has it, so that equal objects are equal bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SharedValues {
    numbers: RapidHashMap<SharedValue, u32>,
    /// By number. Numbers of values without users are given again, so that deleted nodes leave nothing.
    values: Vec<UsedValue>,
    unused: Vec<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct UsedValue {
    value: Option<SharedValue>,
    /// How many times the objects at rest have it.
    users: u32,
}

impl SharedValues {
    /// Adds a user of `value`. Returns its number.
    pub(super) fn acquire(&mut self, value: SharedValue) -> u32 {
        if let Some(&number) = self.numbers.get(&value) {
            self.acquire_again(number);
            return number;
        }
        let used = UsedValue {
            value: Some(value.clone()),
            users: 1,
        };
        let reused = self.unused.pop();
        let number = reused.unwrap_or_else(|| u32::try_from(self.values.len()).unwrap_or(u32::MAX));
        match self.values.get_mut(number as usize) {
            Some(place) => *place = used,
            None => self.values.push(used),
        }
        self.numbers.insert(value, number);
        number
    }

    /// Adds a user of the value `number`.
    pub(super) fn acquire_again(&mut self, number: u32) {
        if let Some(used) = self.values.get_mut(number as usize) {
            used.users += 1;
        }
    }

    /// Removes a user of the value `number`.
    pub(super) fn release(&mut self, number: u32) {
        let Some(used) = self.values.get_mut(number as usize) else {
            return;
        };
        used.users -= 1;
        if used.users == 0
            && let Some(value) = used.value.take()
        {
            self.numbers.remove(&value);
            self.unused.push(number);
        }
    }

    /// Returns the value `number`.
    pub(super) fn get(&self, number: u32) -> Option<&SharedValue> {
        self.values.get(number as usize)?.value.as_ref()
    }

    /// Returns the locations that endpoints have.
    pub(super) fn locations(&self) -> impl Iterator<Item = &Location> {
        self.numbers.keys().filter_map(|value| match value {
            SharedValue::Location(location) => Some(&**location),
            SharedValue::Text(_) => None,
        })
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }
}

/// The numbers that the values of one table have in another table.
pub(super) struct Renumbering<'a> {
    from: &'a SharedValues,
    /// By number in `from`, so that a value is looked up once, however many endpoints have it.
    numbers: Vec<Option<u32>>,
}

impl<'a> Renumbering<'a> {
    pub(super) fn new(from: &'a SharedValues) -> Self {
        Self {
            numbers: vec![None; from.values.len()],
            from,
        }
    }

    /// Adds a user of the value `number` to the other table. Returns the number there.
    pub(super) fn acquire(&mut self, number: u32, to: &mut SharedValues) -> Option<u32> {
        let value = self.from.get(number)?;
        let known = self.numbers.get_mut(number as usize)?;
        // A value that lost its users has lost its number.
        match *known {
            Some(number) if to.get(number) == Some(value) => to.acquire_again(number),
            _ => *known = Some(to.acquire(value.clone())),
        }
        *known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_given_again_after_its_last_user() {
        let mut values = SharedValues::default();
        let text = |text: &str| SharedValue::Text(text.into());
        assert_eq!(values.acquire(text("a")), 0);
        assert_eq!(values.acquire(text("b")), 1);
        assert_eq!(values.acquire(text("a")), 0);
        values.release(0);
        assert_eq!(values.get(0), Some(&text("a")));
        values.release(0);
        assert_eq!(values.get(0), None);
        assert_eq!(values.acquire(text("c")), 0);
        assert_eq!(values.acquire(text("a")), 2);
        assert_eq!(values.len(), 3);
    }

    #[test]
    fn a_value_that_lost_its_number_gets_another() {
        let text = |text: &str| SharedValue::Text(text.into());
        let mut from = SharedValues::default();
        from.acquire(text("a"));
        let mut to = SharedValues::default();
        to.acquire(text("b"));
        let mut numbers = Renumbering::new(&from);
        assert_eq!(numbers.acquire(0, &mut to), Some(1));
        assert_eq!(numbers.acquire(0, &mut to), Some(1));
        to.release(1);
        to.release(1);
        to.acquire(text("c"));
        assert_eq!(to.get(1), Some(&text("c")));
        assert_eq!(numbers.acquire(0, &mut to), Some(2));
        assert_eq!(to.get(2), Some(&text("a")));
        assert_eq!(numbers.acquire(1, &mut to), None);
    }
}
