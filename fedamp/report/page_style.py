"""How an HTML report looks, on a phone, on a desk and on paper."""

CSS = """\
:root { color-scheme: light; }
body { margin: 0; background: #f4f4f2; color: #1a1a1a; font: 17px/1.5 system-ui, sans-serif; }
main { max-width: 66rem; margin: 0 auto; padding: 1rem; }
section, .figures figure { background: #fff; border-radius: 8px; }
section { padding: .3rem 1.1rem 1.1rem; margin-bottom: 1.2rem; }
h1 { font-size: 1.7rem; margin: .6rem 0; }
h2 { font-size: 1.25rem; margin: 1.4rem 0 .4rem; }
h3 { font-size: 1.05rem; margin: 1.2rem 0 .3rem; }
h1, h2, h3, p, dd, li { overflow-wrap: anywhere; }
.verdict { font-size: 1.15rem; border-left: 5px solid #0b3c6f; padding-left: .8rem; }
.caution { border-left: 5px solid #c2571a; padding-left: .8rem; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 1rem;
  align-items: start;
  margin-bottom: 1rem; }
figure { margin: 0; padding: .6rem; }
figure img { width: 100%; height: auto; display: block; }
figcaption { color: #4a4a4a; font-size: .95rem; padding: .4rem; }
dl { display: grid; grid-template-columns: minmax(7rem, 12rem) 1fr; gap: .35rem 1rem; margin: 0; }
dt { color: #4a4a4a; }
dd { margin: 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; background: #fff; width: 100%; }
th, td { text-align: right; padding: .35rem .6rem; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; }
th { vertical-align: bottom; font-weight: 600; }
pre { overflow-x: auto; background: #f4f4f2; padding: .8rem; border-radius: 6px; font-size: .85rem; }
code { font-size: .85rem; overflow-wrap: anywhere; }
summary { cursor: pointer; margin-top: 1rem; }
footer { color: #4a4a4a; font-size: .9rem; margin: 1rem 0; }
@media (max-width: 30rem) {
  main { padding: .4rem; }
  section { padding: .2rem .7rem .8rem; }
  section .figures { margin: 0 -.6rem; }
  figure { padding: .3rem 0; }
  dl { grid-template-columns: 1fr; gap: 0; }
  dd { margin-bottom: .6rem; }
}
@media print { body { background: #fff; } details[open] { display: block; } }
"""
