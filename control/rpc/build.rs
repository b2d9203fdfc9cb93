//! Makes the messages and the service of `proto/`, without a protoc on the machine.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = "weir/store/v1/store.proto";
    println!("cargo::rerun-if-changed=proto/{file}");
    let set = protox::compile([file], ["proto"])?;
    // Values stay slices of the received message until the store copies them.
    tonic_prost_build::configure().bytes(".").compile_fds(set)?;
    Ok(())
}
