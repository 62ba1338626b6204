//! Schedulers by name.

use std::collections::BTreeMap;
use std::fmt;

use crate::error::Error;
use crate::kernel;
use crate::options::Options;
use crate::scheduler::Scheduler;

type Factory = Box<dyn Fn(&Options) -> Box<dyn Scheduler> + Send + Sync>;

/// Schedulers by name: the kernel's, and any that the caller registers.
///
/// ```
/// use schedulers::{Options, Registry, Request, Scheduler, ServerId, Servers};
///
/// /// Always picks the newest server.
/// #[derive(Debug)]
/// struct Newest;
///
/// impl Scheduler for Newest {
///     fn pick(&mut self, servers: &Servers, _: &Request) -> Option<ServerId> {
///         servers
///             .iter()
///             .find(|(_, server)| server.is_eligible())
///             .map(|(id, _)| id)
///     }
/// }
///
/// let mut registry = Registry::kernel();
/// registry.register("newest", |_| Box::new(Newest)).unwrap();
/// assert!(registry.build("newest", &Options::default()).is_ok());
/// assert!(registry.build("oldest", &Options::default()).is_err());
/// ```
#[derive(Default)]
pub struct Registry {
    factories: BTreeMap<String, Factory>,
}

impl Registry {
    /// Returns a registry without schedulers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a registry of the kernel's schedulers under the kernel's names.
    pub fn kernel() -> Self {
        let mut registry = Self::new();
        kernel::register(&mut registry);
        registry
    }

    /// Registers `factory` under `name`.
    ///
    /// # Errors
    /// [`Error::NameTaken`] if the name is registered already.
    pub fn register(
        &mut self,
        name: &str,
        factory: impl Fn(&Options) -> Box<dyn Scheduler> + Send + Sync + 'static,
    ) -> Result<(), Error> {
        if self.factories.contains_key(name) {
            return Err(Error::NameTaken(name.to_owned()));
        }
        self.factories.insert(name.to_owned(), Box::new(factory));
        Ok(())
    }

    /// Builds the scheduler of this name. Names are compared byte by byte, as in the kernel.
    ///
    /// # Errors
    /// [`Error::UnknownScheduler`] if the name is not registered.
    pub fn build(&self, name: &str, options: &Options) -> Result<Box<dyn Scheduler>, Error> {
        let factory = self
            .factories
            .get(name)
            .ok_or_else(|| Error::UnknownScheduler {
                name: name.to_owned(),
                known: self.names().map(str::to_owned).collect(),
            })?;
        Ok(factory(options))
    }

    /// Returns all names in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.factories.keys().map(String::as_str)
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}
