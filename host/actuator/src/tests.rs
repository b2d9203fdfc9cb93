//! The suite with the toy, and what is not every actuator's: faults, limits, sockets.

mod machine;
mod sockets;

mod toy {
    use crate::suite::echo::Toy;
    crate::suite!(Toy);
}
