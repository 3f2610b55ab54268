"""What arrives by itself: which endpoints there are, how loaded their engines are, what they serve. Knows no policy.

A reading's way: `http` (fetch) → `exposition` (find the wanted lines) → `engines` (names of one engine → EngineSample)
→ the sink. What each odd answer of an engine leads to is in docs/telemetry.md.

Telemetry::

    TelemetrySource(sink, *, settings=Settings(), engines=BUILTIN, token=None, in_flight=…, connect=…, now=monotonic_ms,
                    rng=…, concurrency=256, suspect_concurrency=32)
        .update(endpoints)      makes the watched set equal to these EndpointSpecs
        .wake(spec)             reads one endpoint now, unless it is failing
        await .run()            polls until cancelled
        await .close()
        .stats                  TelemetryStats: errors{kind}, remarks{what}, polls, samples, restarts, age_ms(…)
    TelemetrySink               on_sample, on_served_models, on_restart, on_unreachable: what the sink must be
    Settings(cadence=Cadence(…), limits=Limits(…), models_limits=…, path=None, port=None, tls=None)
    BearerToken(file=… | env=…) for engines with `--api-key`; a changed file is read when a token is refused

    SglangLoadSource(sink, *, now, discover=server_info_reader(HttpClient, token))
        .update(endpoints)      a TelemetrySink itself: stands between TelemetrySource and the sink
        await .close()
    parse_orca(header_value, taken_ms) → EngineSample | None

Engines::

    BUILTIN                     name → Engine; a new engine is one file in `engines/` and one line in its `__init__`
    engine_named(name)          raises ConfigurationError that lists the names
    EngineSpecs, engine_from_specs, engines_with     a user's own names (core-metrics-extractor's engineConfigs)

Discovery::

    parse_endpoint_flag(text, engine="vllm") → list[EndpointSpec]       `ip:port[,ip:port…]`
    FileDiscovery(path, apply, *, engines, default_engine="vllm", interval_ms=500, now=…)
        .load()                 first read; raises ConfigurationError
        await .run()            watches until cancelled; a bad file keeps the last good set
        .status                 DiscoveryStatus: ready, endpoints, loads, failures, problems, failing_since_ms
"""
