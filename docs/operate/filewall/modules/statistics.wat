;; The paper's first template (4.4.1): counts calls by client and operation, and replies by operation.
(module
  (import "filewall" "number" (func $number (param i32) (result i64)))
  (import "filewall" "text" (func $text (param i32 i32 i32) (result i32)))
  (import "filewall" "load" (func $load (param i32 i32) (result i64)))
  (import "filewall" "store" (func $store (param i32 i32 i64)))
  (memory (export "memory") 1)
  ;; The key: 'q' or 'p', the operation, the client's address.
  (func $count (param $side i32)
    (local $bytes i32)
    (i32.store8 (i32.const 0) (local.get $side))
    (i32.store8 (i32.const 1) (i32.wrap_i64 (call $number (i32.const 0))))
    (local.set $bytes (i32.add (i32.const 2) (call $text (i32.const 4) (i32.const 2) (i32.const 64))))
    (call $store (i32.const 0) (local.get $bytes)
      (i64.add (i64.const 1) (call $load (i32.const 0) (local.get $bytes)))))
  (func (export "request") (result i32) (call $count (i32.const 113)) (i32.const 0))
  (func (export "reply") (call $count (i32.const 112))))
