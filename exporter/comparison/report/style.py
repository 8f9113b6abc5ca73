"""How the page of a comparison looks, in light and dark."""

__all__ = ["PAGE_STYLE"]

PAGE_STYLE = """
:root{color-scheme:light dark;--ink:#1c2127;--soft:#57606a;--paper:#fff;--panel:#f5f7f9;
--rule:#d5dae0;--good:#116329;--good-paper:#dafbe1;--bad:#a40e26;--bad-paper:#ffebe9}
@media(prefers-color-scheme:dark){:root{--ink:#dde3ea;--soft:#9aa5b1;--paper:#16191d;
--panel:#1e2329;--rule:#353c45;--good:#6fdd8b;--good-paper:#12341d;--bad:#ff9492;
--bad-paper:#43191c}}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:960px;margin:0 auto;padding:24px 20px 64px}
h1{font-size:24px;margin:8px 0}h2{font-size:18px;margin:36px 0 8px}
.badge{display:inline-block;padding:2px 12px;margin-right:8px;border-radius:6px}
.passed{color:var(--good);background:var(--good-paper)}
.failed{color:var(--bad);background:var(--bad-paper)}
.verdict{font-size:17px;overflow-wrap:anywhere}
dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 16px;margin:16px 0}
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
.scroll{overflow-x:auto;border:1px solid var(--rule);border-radius:6px}
table{border-collapse:collapse;width:100%;font-size:14px;font-variant-numeric:tabular-nums}
caption{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
th,td{padding:5px 12px;text-align:left;vertical-align:top;border-top:1px solid var(--rule)}
thead th{border-top:0;background:var(--panel);color:var(--soft);font-weight:600;
white-space:nowrap}
tbody th,td{white-space:nowrap}td:last-child{white-space:normal;min-width:20ch}
tbody th{font-weight:500}td.number,th.number{text-align:right;min-width:0}
.alarm th,.alarm td{color:var(--bad);background:var(--bad-paper)}
figure{margin:20px 0 32px}.chart{display:block;width:100%;height:auto}
figcaption{color:var(--soft);margin:4px 0 8px}
details{margin:8px 0}summary{cursor:pointer;color:var(--soft)}
details .scroll{max-height:420px;overflow-y:auto;margin-top:8px}
section>p{color:var(--soft);font-size:14px;margin:6px 0}
@media print{.scroll{overflow:visible;max-height:none}figure{break-inside:avoid}}
"""
