---
connection: orders
returns: one
params:
  id: {type: integer, required: true, minimum: 1}
---
SELECT id, placed_on, status, total_cents FROM orders WHERE id = :id
