-- Values of every storage class under columns of every affinity.
CREATE TABLE storage (id INTEGER PRIMARY KEY, i INTEGER, r REAL, n NUMERIC, t TEXT, b BLOB, free);
INSERT INTO storage VALUES
    (1, 1, 1.5, 2.5, 'text', x'00ff', 'free'), (2, NULL, NULL, NULL, NULL, NULL, NULL),
    (3, 9223372036854775807, 1e20, '12345678901234567890', '9223372036854775808', x'', 9223372036854775807),
    (4, -9223372036854775808, -0.0, 1e3, '', zeroblob(3), -0.0), (5, 0, 9e999, -9e999, '𝄞 "quoted" \ ', x'f09f9880', 9e999),
    (6, 'not a number', 'nor this', '1.10', 12.5, 'text in a blob column', 1e15), (7, 1.5, 100000000000000, 0.1, char(7, 10, 13, 127), 5, 1e-5),
    (8, 3.0, 123456789012345.68, 1e-7, 'é', 1.0, 1e16), (9, 1e18, 5e-324, 1.7976931348623157e308, char(8232), x'deadbeef', 0.30000000000000004);
