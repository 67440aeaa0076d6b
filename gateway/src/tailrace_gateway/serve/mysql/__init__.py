"""Statements on MySQL and MariaDB by the binary protocol over pymysql's connections, on threads of their own."""
