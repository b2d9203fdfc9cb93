//! What agreeing costs: the processor time of the thread of consensus between the coming of something to order and its commit.

/// Processor time of the calling thread, nanoseconds.
pub type ProcessorTime = fn() -> u64;

/// The processor time of agreeing.
#[derive(Default)]
pub(super) struct Agreeing {
    /// Where there is a processor to look at.
    pub(super) processor: Option<ProcessorTime>,
    /// What it had used when the last thing came that was not asked for by consensus.
    came_ns: u64,
    /// What it had used when something to order came.
    begun_ns: Option<u64>,
}

impl Agreeing {
    /// Something comes.
    pub(super) fn comes(&mut self) {
        if let (Some(processor), None) = (self.processor, self.begun_ns) {
            self.came_ns = processor();
        }
    }

    /// It was done, and something is left to order, or not. Gives what an agreement took that is over.
    pub(super) fn goes(&mut self, ordering: bool) -> Option<u64> {
        let processor = self.processor?;
        match (self.begun_ns, ordering) {
            (None, true) => self.begun_ns = Some(self.came_ns),
            (Some(begun_ns), false) => {
                self.begun_ns = None;
                return Some(processor().saturating_sub(begun_ns));
            }
            _ => {}
        }
        None
    }
}
