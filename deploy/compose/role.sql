-- The role of syncer in docker-compose.yml: no superuser. It owns the tables, because only an owner can create triggers.
\getenv password ROLE_PASSWORD
CREATE ROLE syncer LOGIN PASSWORD :'password';
GRANT CREATE ON DATABASE postgres TO syncer;
SELECT format('ALTER TABLE %I OWNER TO syncer', tablename) FROM pg_tables WHERE schemaname = 'public' \gexec
