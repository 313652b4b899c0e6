"""vLLM's own metrics: scraped from the replicas, or asked of a Prometheus that scrapes them."""

from __future__ import annotations

from scheduler.adapters.vllm.history import Piece as Piece
from scheduler.adapters.vllm.history import PrometheusHistory as PrometheusHistory
from scheduler.adapters.vllm.prometheus import PrometheusMetrics as PrometheusMetrics
from scheduler.adapters.vllm.prometheus_api import Access as Access
from scheduler.adapters.vllm.scraped import ScrapedMetrics as ScrapedMetrics
from scheduler.adapters.vllm.scraped import check_url as check_url
