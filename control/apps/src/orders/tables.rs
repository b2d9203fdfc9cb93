//! Tables of what is ordered and reported. See [`crate::delta::tables`] for how keys are made.

use weir_store::TableName;

/// `actuator 0 plane 0 name` -> [`super::Ordered`]: what a plane there is to have.
pub const ORDERS: TableName = "order";
/// `actuator 0 plane 0 name` -> [`super::Reported`]: what a plane there told last.
pub const REPORTS: TableName = "report";
/// `name` -> [`super::Health`]: what the actuator's monitor told last.
pub const HEALTH: TableName = "health";
/// `actuator 0 cgroup` -> `RepairEntry`: what its monitor is to do.
pub const REPAIRS: TableName = "repair";
/// `actuator 0 wall` -> `PolicySet`: the policies of a FileWall there.
pub const FILEWALLS: TableName = "filewall";
/// `actuator 0 controller` -> [`super::Conduct`]: what the actuator told last of a controller whose session it ended.
pub const CONDUCT: TableName = "conduct";

/// Every table of orders.
pub const ALL: [TableName; 6] = [ORDERS, REPORTS, HEALTH, REPAIRS, FILEWALLS, CONDUCT];
