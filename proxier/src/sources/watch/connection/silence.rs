//! The silence of a server while a response arrives.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Sleep, sleep};

/// The number of parts in which a limit is measured.
pub(in crate::sources::watch) const PARTS: u32 = 4;

/// Detects that a response has sent nothing for a time.
///
/// Looks at the clock a few times in that time instead of at each piece of the response: a first list has a thousand
/// pieces. So a silence of the limit is detected when 1 to 1.25 times the limit has passed.
#[derive(Debug)]
pub(super) struct Silence {
    limit: Duration,
    /// The end of the present part of the limit; `None` until the server is waited for.
    part: Option<Pin<Box<Sleep>>>,
    /// The number of parts that began without a piece of the response since the last one.
    quiet: u32,
}

impl Silence {
    /// Returns the silence of a response of which nothing has arrived.
    pub(super) fn new() -> Self {
        Self {
            limit: Duration::ZERO,
            part: None,
            quiet: 1,
        }
    }

    /// Ends the silence. Returns whether it is the first end in this part of the limit.
    pub(super) fn end(&mut self) -> bool {
        std::mem::take(&mut self.quiet) > 0
    }

    /// Waits until the silence has lasted for `limit`.
    pub(super) fn poll_limit(&mut self, limit: Duration, context: &mut Context<'_>) -> Poll<()> {
        if self.limit != limit {
            self.limit = limit;
            self.part = None;
        }
        loop {
            let part = (self.part).get_or_insert_with(|| Box::pin(sleep(limit / PARTS)));
            ready!(part.as_mut().poll(context));
            self.part = None;
            self.quiet += 1;
            if self.quiet > PARTS {
                return Poll::Ready(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::time::{Instant, timeout};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    fn run(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(test);
    }

    async fn last(silence: &mut Silence) {
        poll_fn(|context| silence.poll_limit(LIMIT, context)).await;
    }

    #[test]
    fn a_silence_is_detected_after_its_limit() {
        run(async {
            let start = Instant::now();
            last(&mut Silence::new()).await;
            assert!((60..=61).contains(&start.elapsed().as_secs()));
            for heard in [1, 14, 16, 44, 59] {
                let (start, mut silence) = (Instant::now(), Silence::new());
                let heard = Duration::from_secs(heard);
                timeout(heard, last(&mut silence)).await.unwrap_err();
                assert!(silence.end());
                assert!(!silence.end(), "the second end in the same part");
                last(&mut silence).await;
                let silent = (start.elapsed() - heard).as_secs();
                assert!((60..=75).contains(&silent), "{heard:?}: {silent} s");
            }
        });
    }

    #[test]
    fn a_server_that_sends_now_and_then_is_not_silent() {
        run(async {
            let mut silence = Silence::new();
            for _ in 0..100 {
                let pause = Duration::from_secs(59);
                timeout(pause, last(&mut silence)).await.unwrap_err();
                assert!(silence.end(), "the first end in 59 s");
            }
        });
    }

    #[test]
    fn another_limit_counts_anew() {
        run(async {
            let mut silence = Silence::new();
            timeout(Duration::from_secs(50), last(&mut silence))
                .await
                .unwrap_err();
            silence.end();
            let start = Instant::now();
            let limit = Duration::from_secs(8);
            poll_fn(|context| silence.poll_limit(limit, context)).await;
            assert!((8..=10).contains(&start.elapsed().as_secs()));
        });
    }
}
