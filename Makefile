# Targets for people and for CI. `make help` lists them.
.DEFAULT_GOAL := help
SHELL := /bin/bash
export PATH := $(PATH):$(HOME)/.cargo/bin:/usr/sbin:/sbin

TARGET := $(if $(CARGO_TARGET_DIR),$(CARGO_TARGET_DIR),target)
WEIR := $(TARGET)/release/weir
LAB ?= two-tenants

.PHONY: help lab lab-down oracles test bench bench-attacks bench-doors bench-files bench-filewall bench-monitor bench-plan bench-ports bench-trust lint fmt clean simulate soak-monitor \
	install-deps lab-deps guest-kernel nfs-peer s3-peer fuse-peer fs-suites suites units build require-root

help: ## list the targets
	@echo "Weir: make <target>"
	@sed -n 's/^\([a-z<>-]*\):[^#]*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18
	@echo "  bench-<name>    run one comparison, for example bench-net (root)"
	@echo "  test-<crate>    run the tests of one crate that have not passed as they are, for example test-switch"

lab: require-root lab-deps build ## build, bring up the lab LAB (two-tenants) and show what it measured (root)
	$(WEIR) lab up $(LAB)

lab-down: require-root ## end the lab and remove all it made (root)
	@test -x $(WEIR) || { echo "$(WEIR) is not built: no lab of this folder can be running"; exit 1; }
	$(WEIR) lab down

test: ## check format, lints and walls, and run all tests that have not passed as they are; FRESH=1 runs all (root for those that need namespaces)
	@scripts/test $(if $(FRESH),--fresh)

test-%:
	@scripts/run-tests $*

bench: require-root install-deps build ## run all comparisons with other systems (root)
	$(WEIR) bench all
	cargo bench --locked -p weir-filewall --bench filewall

bench-attacks: require-root install-deps ## what a controller that crashes, hangs or lies costs the others, and members that come and go (root)
	cargo bench --locked -p weir --bench attacks

bench-doors: ## what 10,000 silent strangers cost an operator's request
	cargo bench --locked -p weir --bench doors

bench-filewall: require-root install-deps ## FileWall beside a direct server and TCP tunnels (root)
	cargo bench --locked -p weir-filewall --bench filewall

bench-monitor: require-root install-deps ## the monitor beside others on the same faults (root)
	cargo run --release --locked -p weir-monitor --example bench

soak-monitor: require-root install-deps ## no false alarm of the monitor in ten idle and ten busy minutes (root)
	cargo run --release --locked -p weir-monitor --example bench -- 600 soak

bench-files: require-root install-deps ## files of a mount, accelerated and not, beside the kernel's (root)
	-@scripts/fuse-peer $(LIBFUSE)
	cargo run --release --locked -p weir-userfs --example files_bench

bench-plan: ## plan and check 10,200 random policy changes on real networks
	cargo run --locked --release --quiet -p weir-plan --example plan_zoo

bench-ports: require-root install-deps ## what a packet costs the switch's engine, beside Open vSwitch with DPDK
	cargo run --release --locked -p weir-switch --example ports

bench-trust: ## what signing a batch costs: a Merkle root by shares or endorsed, each update (Cicero), many signatures (RoSCo)
	cargo run --locked --release --quiet -p weir-trust --example trust_cost

bench-%: require-root install-deps build
	$(WEIR) bench $*

simulate: ## 10,000 seeds of every simulated group of controllers, 1,000 of each kind where some lie (hours; a failing seed is kept in the crate's folder seeds)
	WEIR_RAFT_SEEDS=10000 cargo test --locked -p weir-raft --test main simulation
	WEIR_BFT_SEEDS=1000 cargo test --locked -p weir-bft --test main simulation
	WEIR_SIM_SEEDS=10000 cargo test --locked -p weir-controller --test main simulation

lint: ## format check, clippy, walls, scripts, and cargo-deny where it is installed
	@scripts/lint

fmt: ## format the code
	cargo fmt --all

clean: ## remove what was built
	cargo clean

lab-deps:
	@scripts/install-deps lab

install-deps: ## install the Debian packages that building, labs and benches need
	@scripts/install-deps

guest-kernel: ## fetch the kernel of the guests that tests boot
	@scripts/guest-kernel

nfs-peer: ## build a second NFS server, for FileWall's tests
	@scripts/nfs-peer

suites: require-root install-deps ## run others' tests of NFS servers with FileWall and without it, and of files, all of them (root; PYNFS=SOURCE, LTP_SOURCE=SOURCE); SEEDS=N: N seeds of each simulation and oracle too
	scripts/libnfs-suite build
	scripts/pynfs-suite build $(PYNFS)
	WEIR_SUITES=whole cargo test --locked -p weir --test main -- --nocapture --test-threads 1 filewall::suites
	LTP_SOURCE=$(LTP_SOURCE) scripts/ltp
	$(if $(SEEDS),$(MAKE) oracles SEEDS=$(SEEDS))

oracles: ## SEEDS=N seeds of each simulation, and of each oracle beside real programs; one that fails is kept in the crate's folder seeds
	@test -n "$(SEEDS)" || { echo "how many: make oracles SEEDS=1000"; exit 2; }
	WEIR_SEEDS=$(SEEDS) cargo test --locked -p weir-raft -p weir-bft -p weir-controller --test main simulation
	WEIR_SEEDS=$(SEEDS) cargo test --locked -p weir-userfs --test main beside
	WEIR_HALVES_SEEDS=$(SEEDS) cargo test --locked -p weir-switch --lib verdicts_are_so

units: require-root build ## the units for systemd in a Debian 12 guest: every kind of port, refused calls, monitor, FileWall, files (root, QEMU, Debian's packages the first time)
	packaging/units-in-guest.sh $(WEIR)

s3-peer: ## build an S3 server, for tests of user-space files
	@scripts/s3-peer

fuse-peer: ## build a FUSE server over io_uring, for the comparison of files (LIBFUSE=SOURCE)
	@scripts/fuse-peer $(LIBFUSE)

fs-suites: ## build two suites that test a file system from outside, for tests of user-space files
	@scripts/fs-suites

build:
	cargo build --release --locked -p weir
	@scripts/check-size $(WEIR)

require-root:
	@test "$$(id -u)" = 0 || { echo "This needs root, for network namespaces: run it with sudo or as root."; exit 1; }
