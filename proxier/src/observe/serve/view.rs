//! The view of one request: copies of all shared state, so that answers are pure functions.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::request::Parts;

use super::answer::{self, Answer, Site};
use super::bind_failures::BindFailures;
use super::scrape::Scraper;
use super::status::{self, Form};
use super::{ServeConfig, Sources};
use crate::cluster::model::Family;
use crate::observe::health::{ApiView, Facts, HealthVerdict, Limits};
use crate::plan::HealthCheck;
use crate::sources::watch;
use crate::util::clock;

/// How often samples of histograms move into their buckets.
const UPKEEP_PAUSE: Duration = Duration::from_secs(5);

/// The facts about the process that `/statusz` and `/configz` show.
#[derive(Clone, Debug)]
pub(crate) struct ProcessInfo {
    /// The families that it serves.
    pub(crate) families: Vec<Family>,
    /// The mode, in kube-proxy's words, for `/proxyMode`.
    pub(crate) mode: &'static str,
    /// The start of the process.
    pub(crate) started: SystemTime,
    /// The body of `/configz`: the configuration as one JSON object.
    pub(crate) configz: String,
}

/// The state at the time of one request.
#[derive(Debug)]
pub(super) struct View<'a> {
    pub(super) process: &'a ProcessInfo,
    pub(super) wall: SystemTime,
    pub(super) facts: Facts,
    pub(super) verdict: HealthVerdict,
    /// The health check of the port to which the request came.
    pub(super) check: Option<Arc<HealthCheck>>,
    /// The state of the watch, by kind; `None` with manifests.
    pub(super) watch: Option<watch::Status>,
}

/// Takes views of the shared state, and answers requests from them.
#[derive(Debug)]
pub(super) struct Viewer {
    process: ProcessInfo,
    limits: Limits,
    shows_status: bool,
    sources: Sources,
    scraper: Arc<Scraper>,
}

impl Viewer {
    pub(super) fn new(config: ServeConfig, sources: Sources) -> Self {
        Self {
            process: config.process,
            limits: config.limits,
            shows_status: config.shows_status,
            sources,
            scraper: Arc::new(config.scraper),
        }
    }

    /// Returns the answer to a request at `site`.
    pub(super) fn answer(
        &self,
        site: Site,
        request: &Parts,
    ) -> impl Future<Output = Answer> + use<> {
        let view = self.view(site);
        let answer = answer::answer(site, request, &view);
        let path = request.uri.path();
        if let Some(counter) = answer::counter(site, path) {
            metrics::counter!(counter, "code" => answer.status().as_str().to_owned()).increment(1);
        }
        let scraper = (site == Site::Metrics && path == "/metrics").then(|| self.scraper.clone());
        if scraper.is_some() {
            record_health(&view);
        }
        let form = self.form(site, path);
        let looked = form.map(|form| {
            let observer = self.sources.observer.clone();
            let head = status::head(&view, &observer);
            status::answer(form, status::asked(request), head, observer)
        });
        let watch = view.watch;
        async move {
            if let Some(looked) = looked {
                return looked.await;
            }
            let Some(scraper) = scraper else {
                return answer;
            };
            scraper
                .page(watch)
                .await
                .map_or(answer, answer::metrics_page)
        }
    }

    /// Makes room for new samples of histograms, for ever.
    pub(super) async fn maintain(&self) {
        loop {
            tokio::time::sleep(UPKEEP_PAUSE).await;
            self.scraper.upkeep();
            self.sources.observer.upkeep();
        }
    }

    /// Returns the form of the view at `path`, if this site has it.
    fn form(&self, site: Site, path: &str) -> Option<Form> {
        let has_page = match site {
            Site::Local => true,
            Site::Metrics => self.shows_status,
            Site::Health | Site::HealthPort { .. } => false,
        };
        Form::at(path).filter(|_| has_page)
    }

    /// Returns the addresses at which a server cannot listen.
    pub(super) fn bind_failures(&self) -> &BindFailures {
        &self.sources.bind_failures
    }

    /// Returns the health check of `port`.
    pub(super) fn health_check(&self, port: u16) -> Option<Arc<HealthCheck>> {
        self.sources.health_ports.check(port)
    }

    fn view(&self, site: Site) -> View<'_> {
        let facts = self.sources.board.read();
        let watch = self.sources.watch.as_ref().map(|reader| reader.status());
        let api = watch.as_ref().map(api_view).unwrap_or_default();
        View {
            process: &self.process,
            wall: SystemTime::now(),
            verdict: facts.judge(&api, &self.limits, clock::since_boot()),
            facts,
            check: match site {
                Site::HealthPort { port, .. } => self.health_check(port),
                Site::Health | Site::Metrics | Site::Local => None,
            },
            watch,
        }
    }
}

/// Records what the health pages would answer now.
fn record_health(view: &View<'_>) {
    let verdict = &view.verdict;
    let is_passing = verdict.is_healthy() && verdict.is_node_eligible();
    for (probe, passes) in [("healthz", is_passing), ("livez", verdict.is_fresh)] {
        metrics::gauge!("ipvs_proxier_healthy", "probe" => probe).set(f64::from(u8::from(passes)));
    }
}

/// Returns the view of the kind of object that decides about health: a kind whose requests are rejected,
/// otherwise the kind with the oldest news.
///
/// Only Services and EndpointSlices count. Without the other kinds, existing objects are still served
/// correctly.
pub(super) fn api_view(status: &watch::Status) -> ApiView {
    let kinds = [&status.services, &status.endpoint_slices];
    let views = kinds.map(|kind| ApiView {
        age: kind.heard.map(|heard| heard.elapsed()),
        rejection: kind.rejection.clone(),
    });
    let precedence = |view: &ApiView| (view.rejection.is_some(), view.age);
    views.into_iter().max_by_key(precedence).unwrap_or_default()
}
