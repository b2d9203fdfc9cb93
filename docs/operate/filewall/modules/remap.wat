;; The paper's second template, attribute transformation (4.4.2): user 5000 is 1001 on the server, both ways.
(module
  (import "filewall" "number" (func $number (param i32) (result i64)))
  (import "filewall" "set_number" (func $set (param i32 i64)))
  (memory (export "memory") 1)
  (func (export "request") (result i32)
    (if (i64.eq (call $number (i32.const 1)) (i64.const 5000))
      (then (call $set (i32.const 1) (i64.const 1001))))
    (i32.const 0))
  (func (export "reply")
    (if (i64.eq (call $number (i32.const 11)) (i64.const 1001))
      (then (call $set (i32.const 11) (i64.const 5000))))))
