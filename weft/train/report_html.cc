// Style and script of report.html.
#include "weft/train/report_html.h"

namespace weft {

const char kReportStyle[] = R"css(
:root{--bg:#f6f7f9;--card:#fff;--ink:#1b2330;--soft:#667085;--edge:#e3e7ee;--grid:#eceff4;--good:#0a7d4b;--bad:#b42318;--hot:#e4572e;--cold:#2f6fde;
--k0:#2f6fde;--k1:#e4572e;--k2:#139a74;--k3:#9b51c9;--k4:#d99a0b;--k5:#d6457f;--k6:#4aa3c7;--k7:#7d8590}
@media(max-width:480px){.tiles{grid-template-columns:1fr 1fr}}
@media(prefers-color-scheme:dark){:root{--bg:#0f131a;--card:#181e28;--ink:#e6eaf1;--soft:#98a2b3;--edge:#283142;--grid:#242c3a;--good:#4cc38a;--bad:#ff8a7a;--hot:#ff7a52;--cold:#6ea0ff;
--k0:#6ea0ff;--k1:#ff7a52;--k2:#3cc79b;--k3:#c08bea;--k4:#f0bc42;--k5:#ff7fb0;--k6:#79c7e6;--k7:#a3abb8}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1240px;margin:0 auto;padding:24px 16px 64px}
header h1{font-size:26px;margin:0;letter-spacing:-.01em;overflow-wrap:anywhere}
header p{margin:2px 0 0;color:var(--soft);overflow-wrap:anywhere}
h2{font-size:17px;margin:32px 0 12px}h3{font-size:14px;margin:20px 0 8px}small{color:var(--soft);font-weight:400}
.card{background:var(--card);border:1px solid var(--edge);border-radius:12px;padding:14px 16px;margin:0}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(176px,1fr));gap:12px;margin-top:20px}
.tile{min-width:0}.tile span{display:block;color:var(--soft);font-size:12.5px;overflow-wrap:anywhere}.tile b{display:block;font-size:17px;white-space:nowrap;font-variant-numeric:tabular-nums;line-height:1.35}
.tile b.good{color:var(--good)}.tile b.bad{color:var(--bad)}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,380px),1fr));gap:14px}
figcaption{display:flex;justify-content:space-between;gap:10px;font-size:13.5px;margin-bottom:4px}figcaption span{color:var(--soft);font-size:12px;text-align:right}
svg{display:block;width:100%;height:auto}svg text{fill:var(--soft);font-size:11px;font-variant-numeric:tabular-nums}
.grid{stroke:var(--grid)}.line{fill:none;stroke-width:1.8;stroke-linejoin:round}.area{fill-opacity:.82}.cursor{stroke:var(--soft);stroke-dasharray:3 3;visibility:hidden}
.c0{stroke:var(--k0)}.c1{stroke:var(--k1)}.c2{stroke:var(--k2)}.c3{stroke:var(--k3)}.c4{stroke:var(--k4)}.c5{stroke:var(--k5)}.c6{stroke:var(--k6)}.c7{stroke:var(--k7)}
.f0{fill:var(--k0)}.f1{fill:var(--k1)}.f2{fill:var(--k2)}.f3{fill:var(--k3)}.f4{fill:var(--k4)}.f5{fill:var(--k5)}.f6{fill:var(--k6)}.f7{fill:var(--k7)}
.k0{background:var(--k0)}.k1{background:var(--k1)}.k2{background:var(--k2)}.k3{background:var(--k3)}.k4{background:var(--k4)}.k5{background:var(--k5)}.k6{background:var(--k6)}.k7{background:var(--k7)}
.hot{fill:var(--hot)}.cold{fill:var(--cold)}.hotkey{background:var(--hot)}.coldkey{background:var(--cold)}
.legend{display:flex;flex-wrap:wrap;gap:2px 14px;font-size:12px;color:var(--soft);margin-top:4px}.legend i{display:inline-block;width:10px;height:10px;border-radius:3px;margin-right:5px}
.samples{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,380px),1fr));gap:14px}
.sample pre{margin:8px 0 0;white-space:pre-wrap;overflow-wrap:anywhere;font:13px/1.65 ui-monospace,SFMono-Regular,Menlo,monospace;max-height:340px;overflow:auto}
.prompt{color:var(--soft);border-left:3px solid var(--edge);padding-left:10px}
.sample s{text-decoration:none;border-radius:3px;background:color-mix(in srgb,var(--hot) calc(var(--a)*75%),transparent)}
.pills{display:flex;flex-wrap:wrap;gap:6px}.pill{font-size:12px;border:1px solid var(--edge);border-radius:999px;padding:0 9px;color:var(--soft);max-width:100%;overflow-wrap:anywhere}.pill.good{color:var(--good);border-color:currentColor}.pill.bad{color:var(--bad);border-color:currentColor}
details{margin-top:14px}summary{cursor:pointer;color:var(--soft)}details>pre{overflow:auto;font:12.5px/1.55 ui-monospace,SFMono-Regular,Menlo,monospace;margin:10px 0 0}details>.charts{margin-top:12px}
#tip{position:fixed;pointer-events:none;display:none;background:var(--ink);color:var(--bg);font-size:12px;line-height:1.45;border-radius:8px;padding:6px 10px;z-index:9;white-space:pre;font-variant-numeric:tabular-nums}
)css";

const char kReportScript[] = R"js(
(function(){var tip=document.getElementById('tip');
document.querySelectorAll('svg.chart').forEach(function(svg){var data=null,cursor=svg.querySelector('.cursor');
function hide(){tip.style.display='none';cursor.style.visibility='hidden'}
svg.addEventListener('pointerleave',hide);
svg.addEventListener('pointermove',function(e){data=data||JSON.parse(svg.dataset.c);var box=svg.getBoundingClientRect();
var x=(e.clientX-box.left)/box.width*svg.viewBox.baseVal.width,best=0;
for(var i=1;i<data.px.length;i++)if(Math.abs(data.px[i]-x)<Math.abs(data.px[best]-x))best=i;
cursor.setAttribute('x1',data.px[best]);cursor.setAttribute('x2',data.px[best]);cursor.style.visibility='visible';
var lines=['step '+data.x[best]];data.s.forEach(function(s){if(s.y[best]!==null)lines.push(s.n+'  '+s.y[best])});
tip.textContent=lines.join('\n');tip.style.display='block';
tip.style.left=Math.max(4,Math.min(e.clientX+14,innerWidth-tip.offsetWidth-8))+'px';
tip.style.top=Math.max(4,e.clientY-tip.offsetHeight-12)+'px'})})})();
)js";

}  // namespace weft
