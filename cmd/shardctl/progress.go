package main

import (
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// progress shows on a terminal how far a long command is.
type progress struct {
	bars *mpb.Progress
	bar  *mpb.Bar
}

// startProgress begins to count towards total (0 where it is not known). Nothing
// is shown for the first second, nor off a terminal.
func (a *app) startProgress(total uint64) *progress {
	if !a.errTerminal {
		return &progress{}
	}
	wait := make(chan any)
	time.AfterFunc(time.Second, func() { close(wait) })
	bars := mpb.New(mpb.WithOutput(a.err), mpb.WithRenderDelay(wait), mpb.WithWidth(60))
	if total == 0 {
		// How much is to come is not known: only a count.
		bar := bars.New(0, mpb.NopStyle(), mpb.BarRemoveOnComplete(), mpb.PrependDecorators(decor.CurrentNoUnit("%d keys")))
		return &progress{bars, bar}
	}
	bar := bars.AddBar(int64(total),
		mpb.BarRemoveOnComplete(),
		mpb.PrependDecorators(decor.CountersNoUnit("%d of %d keys ")),
		mpb.AppendDecorators(decor.Percentage()))
	return &progress{bars, bar}
}

func (p *progress) set(keys uint64) {
	if p.bar != nil {
		p.bar.SetCurrent(int64(keys))
	}
}

// done takes the bar away.
func (p *progress) done() {
	if p.bar != nil {
		p.bar.Abort(true)
		p.bars.Wait()
	}
}
