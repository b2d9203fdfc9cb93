;; The paper's third template, flow transformation (4.4.3): from 22:00 to 06:00 UTC everything is denied (NFS3ERR_ACCES).
(module
  (import "filewall" "number" (func $number (param i32) (result i64)))
  (memory (export "memory") 1)
  (func (export "request") (result i32)
    (local $hour i64)
    (local.set $hour (i64.rem_u (i64.div_u (call $number (i32.const 8)) (i64.const 3600000)) (i64.const 24)))
    (if (result i32)
      (i32.or (i64.ge_u (local.get $hour) (i64.const 22)) (i64.lt_u (local.get $hour) (i64.const 6)))
      (then (i32.const 13))
      (else (i32.const 0)))))
