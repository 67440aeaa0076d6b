---
connection: orders
params:
  since: {type: date, required: true}
---
SELECT placed_on, COUNT(*) AS orders, SUM(total_cents) AS total_cents
FROM orders
WHERE placed_on >= :since
GROUP BY placed_on
ORDER BY placed_on
