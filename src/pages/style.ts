/** The style of all pages. A table becomes a list on a phone: each cell then begins with the name of its column. */
import { markup } from './markup.ts'

/** CSS, in a template without values. */
export const STYLE = markup`
:root{color-scheme:light dark;--back:#fff;--text:#1b1f24;--soft:#57606a;--line:#d0d7de;--card:#f6f8fa;--link:#0a58ca;--ok:#1a7f37;--warning:#9a6700;--failure:#c62828}
@media(prefers-color-scheme:dark){:root{--back:#0f1318;--text:#e2e6ea;--soft:#9aa4af;--line:#313840;--card:#181e25;--link:#76acf5;--ok:#56c271;--warning:#dfb04a;--failure:#ff7b72}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1rem;max-width:78rem;background:var(--back);color:var(--text);font:15px/1.45 system-ui,sans-serif;overflow-wrap:anywhere}
h1{font-size:1.4rem;margin:0}
h2{font-size:1.05rem;margin:1.6rem 0 .5rem}
p{margin:.3rem 0}
header p,.soft,figcaption,th,dt{color:var(--soft)}
a{color:var(--link)}
.ok{color:var(--ok)}
.warning{color:var(--warning)}
.failure{color:var(--failure)}
table{width:100%;border-collapse:collapse}
th,td{padding:.3rem .8rem .3rem 0;text-align:left;vertical-align:top;border-bottom:1px solid var(--line)}
th,b{white-space:nowrap}
td:not(:last-child){overflow-wrap:break-word}
section{overflow-x:auto}
th{font-weight:600;font-size:.85rem}
.number{text-align:right;font-variant-numeric:tabular-nums}
dl{display:grid;grid-template-columns:repeat(auto-fill,minmax(13rem,1fr));gap:.5rem 1rem;margin:0}
dt{font-size:.85rem}
dd{margin:0}
form{display:flex;gap:.5rem;margin:.5rem 0}
input,button{font:inherit;padding:.35rem .6rem;border:1px solid var(--line);border-radius:.3rem;background:var(--card);color:inherit}
input{flex:1;max-width:24rem;min-width:0}
nav{display:flex;gap:1rem;margin:.5rem 0}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(18rem,1fr));gap:1rem}
figure{margin:0;padding:.7rem;background:var(--card);border-radius:.4rem}
svg{display:block;width:100%;height:7rem;margin:.4rem 0}
polyline{fill:none;stroke-width:1.6;vector-effect:non-scaling-stroke}
.first{stroke:var(--link);color:var(--link)}
.second{stroke:var(--failure);color:var(--failure)}
.axis{display:flex;justify-content:space-between;font-size:.8rem;color:var(--soft)}
@media(max-width:44rem){
thead{display:none}
tr{display:block;padding:.4rem 0;border-bottom:1px solid var(--line)}
td,td:not(:last-child){overflow-wrap:anywhere}
td,.number{display:flex;gap:.8rem;padding:.1rem 0;border:0;text-align:left}
td::before{content:attr(data-of);flex:0 0 7.5rem;color:var(--soft)}
}
`
